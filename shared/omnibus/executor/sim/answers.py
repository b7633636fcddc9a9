"""Scripted answers of a simulated language model, and their rules."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

#: Formats of tool calls by their modules in ``omnibus_models.tool_calls``.
ToolFormatName = Literal["hermes", "llama3", "mistral", "gemma"]

#: Formats of models whose whole answer is calls, or text.
WHOLE_CALLS: frozenset[ToolFormatName] = frozenset(("llama3", "gemma"))


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call of the function ``name``."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    arguments: dict[str, Any] = {}


class ScriptedAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A rule: the answer to a last message of ``role`` that contains a text, ignoring case."""

    role: Literal["user", "tool"] = "user"
    contains: str = ""
    reasoning: str = ""
    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()

    def __post_init__(self) -> None:
        if not (self.reasoning or self.text or self.calls):
            raise ValueError("an answer needs `text`, `calls` or `reasoning`")

    def fits_message(self, message: Mapping[str, Any]) -> bool:
        """Return whether the rule matches ``message``, the last one of a chat."""
        return message.get("role") == self.role and self.contains.casefold() in message_text(message).casefold()


class ToolParams(msgspec.Struct, frozen=True):
    """Request parameters that determine which answers there may be."""

    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    allowed_tools: tuple[str, ...] = ()

    def permits(self, answer: ScriptedAnswer) -> bool:
        """Return whether a model that follows the request could answer so."""
        offered = {tool.get("function", {}).get("name") for tool in self.tools}
        if self.allowed_tools:
            offered &= {*self.allowed_tools}
        if self.tool_choice == "required" and not answer.calls:
            return False
        return {call.name for call in answer.calls} <= offered and (self.parallel_tool_calls or len(answer.calls) < 2)


def find_answer(
    answers: Sequence[ScriptedAnswer], message: Mapping[str, Any], params: ToolParams
) -> ScriptedAnswer | None:
    """Return the first of ``answers`` that matches ``message`` and ``params``, or None."""
    return next((each for each in answers if each.fits_message(message) and params.permits(each)), None)


def message_text(message: Mapping[str, Any]) -> str:
    """Return the text of ``message``, or of its parts, joined."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return "".join([text for text in texts if isinstance(text, str)])
