"""Language models: one protocol, clients of three APIs, prices, the ledger, and a local server.

Knows nothing of search, agents or experiments. Importing it needs neither an SDK nor a model.
"""

from toolkit.llm.errors import ModelError
from toolkit.llm.protocol import ChatModel, Message, Settings, ToolCallRequest, Turn, Usage

__all__ = ["ChatModel", "Message", "ModelError", "Settings", "ToolCallRequest", "Turn", "Usage"]
