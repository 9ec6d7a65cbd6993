"""Language models: clients of three APIs, prices, the ledger of a run, and local servers.

The package does not depend on search, agents or experiments. Importing it needs neither an SDK nor
a model.
"""

from soundingline.toolkit.llm.errors import ModelError
from soundingline.toolkit.llm.messages import (
    ChatModel,
    Message,
    SamplingParams,
    ToolCall,
    Turn,
    Usage,
)

__all__ = ["ChatModel", "Message", "ModelError", "SamplingParams", "ToolCall", "Turn", "Usage"]
