"""Language models: clients of three APIs, prices, the ledger of a run, and local servers.

The package does not depend on search, agents or experiments. Importing it needs neither an HTTP
library nor a model.
"""

from soundingline.toolkit.llm.errors import ModelError
from soundingline.toolkit.llm.messages import (
    ChatModel,
    FunctionCall,
    Message,
    SamplingParams,
    Turn,
    Usage,
)

__all__ = ["ChatModel", "FunctionCall", "Message", "ModelError", "SamplingParams", "Turn", "Usage"]
