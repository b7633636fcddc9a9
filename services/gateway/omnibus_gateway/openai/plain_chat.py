"""Plain chats: text messages without references, answered in text or speech.

A chat with any field that is not listed here is not plain. This includes fields added in the future.
"""

from operator import attrgetter
from typing import Any

from omnibus_gateway.openai.chat_request import (
    AssistantMessage,
    ChatRequest,
    DeveloperMessage,
    SystemMessage,
    UserMessage,
)

#: Fields that a plain chat may have.
PLAIN_FIELDS = frozenset(
    {"model", "messages", "modalities", "audio", "stream", "stream_options", "max_tokens", "max_completion_tokens",
     "temperature", "top_p", "seed", "stop", "top_k", "repetition_penalty", "ignore_eos", "metadata", "user", "store"}
)  # fmt: skip
_OTHER_FIELDS = tuple(name for name in ChatRequest.__struct_fields__ if name not in PLAIN_FIELDS)
_read_other_fields = attrgetter(*_OTHER_FIELDS)  # all of them in one call
_NO_OTHER_FIELDS = (None,) * len(_OTHER_FIELDS)
#: Fields of an assistant's message other than its text; a plain chat has none of them.
_BESIDES = tuple(name for name in AssistantMessage.__struct_fields__ if name != "content")
_read_besides = attrgetter(*_BESIDES)
_NOTHING_BESIDES = (None,) * len(_BESIDES)
_TEXT_MESSAGES = (UserMessage, SystemMessage, DeveloperMessage)


def is_plain_chat(request: ChatRequest) -> bool:
    """Return whether ``request`` has only plain fields and messages of text alone."""
    return (
        _read_other_fields(request) == _NO_OTHER_FIELDS
        and not request.wants_images
        and all(map(_is_text_message, request.messages))
    )


def _is_text_message(message: Any) -> bool:
    kind = type(message)
    if kind is AssistantMessage:
        return type(message.content) is str and _read_besides(message) == _NOTHING_BESIDES
    return kind in _TEXT_MESSAGES and type(message.content) is str
