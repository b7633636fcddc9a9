"""Requests and responses of ``/tokenize`` and ``/detokenize``. Source: the protocol of vLLM's server, 0.32.

The executor that has the tokenizer counts, splits and joins the tokens.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from omnibus.errors import BadRequest
from omnibus_gateway.openai.chat_request import ChatRequest, Message, UserMessage
from omnibus_gateway.openai.options import MAX_TOOLS, FunctionTool, TokenNumber
from omnibus_gateway.openai.parse import check_chat, decode_body

TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"

Model = Annotated[str, Meta(max_length=256)]


class TokenizeRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt, or the messages of a chat. ``model`` is optional if there is one model."""

    model: Model = ""
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    # Fields of messages.
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None = None

    # Accepted only without a value.
    chat_template: Any = None
    media_io_kwargs: Any = None
    mm_processor_kwargs: Any = None

    def to_chat(self, model: str) -> ChatRequest:
        """Return the chat of these messages, or a placeholder for a prompt. Raises ``BadRequest``."""
        chat = ChatRequest(
            model=model,
            messages=self.messages or [UserMessage("")],
            tools=self.tools,
            chat_template_kwargs=self.chat_template_kwargs,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
        )
        check_chat(chat)
        return chat

    def plain_prompt(self) -> dict[str, Any]:
        """Return the message of the prompt."""
        no_marks = {"add_special_tokens": False} if self.add_special_tokens is False else {}
        return {"role": "prompt", "content": self.prompt, **no_marks}


class TokenizeResponse(Struct, frozen=True):
    """Tokens of a prompt. ``max_model_len`` is the model's context, None if it is unknown."""

    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token ids. ``model`` is optional if there is one model."""

    model: Model = ""
    tokens: Annotated[list[TokenNumber], Meta(max_length=1 << 20)]

    def plain_prompt(self) -> dict[str, Any]:
        """Return the message of the tokens."""
        return {"role": "prompt", "content": self.tokens}


class DetokenizeResponse(Struct, frozen=True):
    """The text of the tokens, including special ones."""

    prompt: str


#: Fields whose values cannot be used, and the alternative.
_REJECTED = {
    "chat_template": "The checkpoint's chat template applies: omit it, or send the rendered text as prompt.",
    "media_io_kwargs": "Chats with media have no list of tokens: omit it.",
    "mm_processor_kwargs": "Chats with media have no list of tokens: omit it.",
}
#: Fields that only messages have.
_CHAT_FIELDS = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")
_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


def parse_tokenize_request(body: bytes) -> TokenizeRequest:
    """Decode and check a request. Raises ``BadRequest`` with ``param``, and ``TooLarge``."""
    request = decode_body(_TOKENIZE, body)
    for name, instead in _REJECTED.items():
        if getattr(request, name):
            raise BadRequest(f"The value of '{name}' is not supported. {instead}", param=name)
    if (request.prompt is None) == (request.messages is None):
        raise BadRequest("Send either prompt or messages.", param="prompt")
    for name in _CHAT_FIELDS if request.messages is None else ():
        if getattr(request, name):
            raise BadRequest(f"'{name}' is only allowed with messages.", param=name)
    if request.messages is not None and request.add_special_tokens:
        raise BadRequest(
            "The chat template adds the special tokens of messages: omit add_special_tokens.",
            param="add_special_tokens",
        )
    return request


def parse_detokenize_request(body: bytes) -> DetokenizeRequest:
    """Decode a request. Raises ``BadRequest`` with ``param``, and ``TooLarge``."""
    return decode_body(_DETOKENIZE, body)


def encode_tokens(ids: list[int], tokens: list[str] | None, context: int | None) -> bytes:
    """Encode the response to a tokenization; ``tokens`` are entries of the vocabulary, or None."""
    return msgspec.json.encode(TokenizeResponse(len(ids), context, ids, tokens))


def encode_text(text: str) -> bytes:
    """Encode the response to a detokenization."""
    return msgspec.json.encode(DetokenizeResponse(text))
