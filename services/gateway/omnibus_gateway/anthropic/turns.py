"""Conversion of the turns of a conversation to messages of a chat.

A turn of the user becomes the results of its tools, and then its other blocks as one message. Results are texts, so
their images follow in that message. Consecutive turns of one role are one message. A system turn in the middle belongs
to the user's message.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from omnibus.errors import BadRequest
from omnibus_gateway.anthropic.wire import (
    Base64Source,
    ContentBlock,
    ContentSource,
    DocumentBlock,
    ImageBlock,
    MessageTurn,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    TextSource,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UploadedSource,
    UrlSource,
)
from omnibus_gateway.openai.chat_request import (
    AssistantMessage,
    FilePart,
    FileReference,
    ImagePart,
    ImageUrl,
    Message,
    SystemMessage,
    TextPart,
    ToolMessage,
    UserMessage,
    UserPart,
)
from omnibus_gateway.openai.options import FunctionCall, ToolCall
from omnibus_gateway.openai.responses.items import decode_reasoning

#: Stands for an image in the text of a tool's result; the image follows in the user's message.
IMAGE_MARK = "[image]"
#: Begins the text of a result with ``is_error``.
ERROR_MARK = "Error: "
#: Text of a system turn in the middle of a conversation.
SYSTEM_TURN = "<system>\n{}\n</system>"


class MessagePlace(Struct, frozen=True):
    """Source of a chat message in the client's request: its ``param``, and those of its parts."""

    param: str
    parts: tuple[str, ...] = ()


class PlacedPart(NamedTuple):
    """Part of a user's message, and the ``param`` of errors about it."""

    part: UserPart
    param: str


class ChatBuilder:
    """Messages of a chat, and the client's place of each."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.places: list[MessagePlace] = []

    def add_system(self, content: str | Sequence[ContentBlock], param: str) -> None:
        """Add a system prompt."""
        if isinstance(content, str):
            self._add(SystemMessage(content), MessagePlace(param))
            return
        texts = [TextPart(_require_text(block, f"{param}[{index}]")) for index, block in enumerate(content)]
        self._add(SystemMessage(texts or ""), MessagePlace(param))

    def add_turn(self, turn: MessageTurn, param: str) -> None:
        """Add a turn. Raises ``BadRequest`` for blocks that its role cannot have."""
        if turn.role == "system":
            self._add_system_turn(turn.content, f"{param}.content")
            return
        blocks = [TextBlock(text=turn.content)] if isinstance(turn.content, str) else turn.content
        place = f"{param}.content"
        params = [place] if isinstance(turn.content, str) else [f"{place}[{index}]" for index, _ in enumerate(blocks)]
        if turn.role == "user":
            self._add_user(blocks, params, place)
        else:
            self._add_assistant(blocks, params, place)

    def _add_system_turn(self, content: str | Sequence[ContentBlock], param: str) -> None:
        """Add a system turn. After the first turn it is text of the user's, as few templates accept it there."""
        if all(isinstance(message, SystemMessage) for message in self.messages):
            self.add_system(content, param)
            return
        blocks = [TextBlock(text=content)] if isinstance(content, str) else content
        text = "\n".join(_require_text(block, f"{param}[{index}]") for index, block in enumerate(blocks))
        self._add_parts([PlacedPart(TextPart(SYSTEM_TURN.format(text)), param)], param)

    def _add_user(self, blocks: Sequence[ContentBlock], params: Sequence[str], param: str) -> None:
        parts: list[PlacedPart] = []
        has_results = False
        for block, block_param in zip(blocks, params, strict=True):
            converted = _user_parts(block, block_param)
            if isinstance(block, ToolResultBlock):
                has_results = True
                text = _result_text(converted, is_error=bool(block.is_error))
                self._add(ToolMessage(text, block.tool_use_id), MessagePlace(f"{block_param}.tool_use_id"))
                converted = [each for each in converted if not isinstance(each.part, TextPart)]
            parts += converted
        if parts or not has_results:
            self._add_parts(parts, param)

    def _add_parts(self, parts: Sequence[PlacedPart], param: str) -> None:
        """Add a message of ``parts``, or add them to the preceding message of the user."""
        content, places = [each.part for each in parts], tuple(each.param for each in parts)
        if self.messages and isinstance(before := self.messages[-1], UserMessage):
            earlier = [TextPart(before.content)] if isinstance(before.content, str) else before.content
            place = self.places.pop()
            self.messages[-1] = UserMessage([*earlier, *content])
            self.places.append(MessagePlace(place.param, (*(place.parts or (place.param,)), *places)))
            return
        match content:
            case []:
                self._add(UserMessage(""), MessagePlace(param))
            case [TextPart(text)]:
                self._add(UserMessage(text), MessagePlace(param))
            case _:
                self._add(UserMessage(content), MessagePlace(param, places))

    def _add_assistant(self, blocks: Sequence[ContentBlock], params: Sequence[str], param: str) -> None:
        text, reasoning, calls = "", "", list[ToolCall]()
        if self.messages and isinstance(before := self.messages[-1], AssistantMessage):
            self.messages.pop()
            param = self.places.pop().param
            text, reasoning = str(before.content or ""), before.reasoning_content or ""
            calls = before.tool_calls or []
        for block, block_param in zip(blocks, params, strict=True):
            match block:
                case ThinkingBlock():
                    reasoning += block.thinking or decode_reasoning(block.signature)
                case RedactedThinkingBlock():
                    pass  # of another service
                case ToolUseBlock():
                    arguments = msgspec.json.encode(block.input).decode()
                    calls = [*calls, ToolCall(block.id, FunctionCall(block.name, arguments))]
                case _:
                    text += _require_text(block, block_param)
        content = text if text or not calls else None
        self._add(
            AssistantMessage(content, tool_calls=calls or None, reasoning_content=reasoning or None),
            MessagePlace(param),
        )

    def _add(self, message: Message, place: MessagePlace) -> None:
        self.messages.append(message)
        self.places.append(place)


def _require_text(block: ContentBlock, param: str) -> str:
    if not isinstance(block, TextBlock):
        raise BadRequest(f"A block of type {_type(block)!r} is not allowed here: send text.", param=f"{param}.type")
    return block.text


def _user_parts(block: ContentBlock, param: str) -> list[PlacedPart]:
    """Convert a block of a user's message, or of a tool's result."""
    match block:
        case TextBlock():
            return [PlacedPart(TextPart(block.text), param)]
        case ImageBlock():
            return [PlacedPart(_image_part(block.source), f"{param}.source")]
        case DocumentBlock():
            return _document_parts(block, param)
        case SearchResultBlock():
            texts = [block.title, block.source, *(each.text for each in block.content)]
            return [PlacedPart(TextPart("\n".join(texts)), param)]
        case ToolResultBlock():
            return _result_parts(block, param)
    raise BadRequest(
        f"A block of type {_type(block)!r} is not allowed in a user's message: send it as the assistant's.",
        param=f"{param}.type",
    )


def _image_part(source: Base64Source | UrlSource | UploadedSource) -> UserPart:
    match source:
        case Base64Source(media_type, data):
            return ImagePart(ImageUrl(f"data:{media_type};base64,{data}"))
        case UrlSource(url):
            return ImagePart(ImageUrl(url))
        case UploadedSource(file_id):
            return FilePart(FileReference(file_id))


def _document_parts(block: DocumentBlock, param: str) -> list[PlacedPart]:
    head = "\n".join(text for text in (block.title, block.context) if text)
    match block.source:
        case TextSource(data) | ContentSource(str(data)):
            return [PlacedPart(TextPart("\n".join(text for text in (head, data) if text)), param)]
        case ContentSource(list(blocks)):
            title = [PlacedPart(TextPart(head), param)] if head else []
            return title + _nested_parts(blocks, f"{param}.source.content")
    raise BadRequest(
        "PDFs and files are not supported as documents: send their text in a source of type text, or pages as images.",
        param=f"{param}.source",
    )


def _result_parts(block: ToolResultBlock, param: str) -> list[PlacedPart]:
    if block.content is None or isinstance(block.content, str):
        return [PlacedPart(TextPart(block.content or ""), param)]
    return _nested_parts(block.content, f"{param}.content")


def _nested_parts(blocks: Sequence[ContentBlock], param: str) -> list[PlacedPart]:
    return [part for index, each in enumerate(blocks) for part in _user_parts(each, f"{param}[{index}]")]


def _result_text(parts: Sequence[PlacedPart], *, is_error: bool) -> str:
    text = "\n".join(part.text if isinstance(part, TextPart) else IMAGE_MARK for part, _ in parts)
    return f"{ERROR_MARK}{text}" if is_error else text


def _type(block: Any) -> str:
    return str(block.__struct_config__.tag)
