"""Tools of a chat, the choice between them, calls of them, and the shape that an answer must have.

Source: the request types of the ``openai`` package, 3.52.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from omnibus.errors import BadRequest

#: Tools that one request may name, as at OpenAI.
MAX_TOOLS = 128

Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]
Id = Annotated[str, Meta(min_length=1, max_length=256)]
Description = Annotated[str, Meta(max_length=65_536)]


class FunctionDefinition(Struct, frozen=True, omit_defaults=True):
    """A function that a model may call. ``parameters`` is a JSON schema, to which a call holds that is required."""

    name: Name
    description: Description | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Struct, frozen=True, tag_field="type", tag="function"):
    function: FunctionDefinition


class FunctionName(Struct, frozen=True):
    name: Name


class NamedToolChoice(Struct, frozen=True, tag_field="type", tag="function"):
    """The one function that has to be called."""

    function: FunctionName


class AllowedTools(Struct, frozen=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedToolChoice], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolChoice(Struct, frozen=True, tag_field="type", tag="allowed_tools"):
    """Some of the tools, the only ones that may be called."""

    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolChoice


class FunctionCall(Struct, frozen=True):
    """``arguments`` is the text of a JSON object."""

    name: Name
    arguments: str


class ToolCall(Struct, frozen=True, tag_field="type", tag="function"):
    """A call that an earlier answer made."""

    id: Id
    function: FunctionCall


class CallDeltaFunction(Struct, frozen=True, omit_defaults=True):
    """Part of a call: the name once, and more of the text of its arguments."""

    arguments: str
    name: str | UnsetType = UNSET


class CallDelta(Struct, frozen=True, omit_defaults=True):
    """Part of call number ``index``; ``id`` and ``type`` come once, with the name."""

    index: int
    function: CallDeltaFunction
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class JsonSchema(Struct, frozen=True):
    name: Name
    schema: dict[str, Any] | None = None
    description: Description | None = None
    strict: bool | None = None


class TextFormat(Struct, frozen=True, tag_field="type", tag="text"):
    """Any text."""


class JsonObjectFormat(Struct, frozen=True, tag_field="type", tag="json_object"):
    """A JSON object, whichever."""


class JsonSchemaFormat(Struct, frozen=True, tag_field="type", tag="json_schema"):
    """JSON that holds to a schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


def tool_params(tools: list[FunctionTool], choice: ToolChoice | None, *, parallel: bool) -> dict[str, Any]:
    """The parameters of text generation that stand for ``tools`` and the ``choice``; empty where none may be called.

    ``tools`` are as chat templates take them, ``tool_choice`` is ``auto`` or ``required``. Raises ``BadRequest``.
    """
    if not tools or choice == "none":
        return {}
    mode, allowed = _read_choice(tools, choice)
    listed = [tool for tool in tools if not allowed or tool.function.name in allowed]
    shown = tools if isinstance(choice, NamedToolChoice) else listed
    made = {"tools": msgspec.to_builtins(shown), "tool_choice": mode, "parallel_tool_calls": parallel}
    if isinstance(choice, NamedToolChoice):
        made |= {"allowed_tools": allowed, "parallel_tool_calls": False}
    return made


def check_tools(tools: list[FunctionTool] | None, choice: ToolChoice | None) -> None:
    """Raises ``BadRequest`` for tools with the same name, and for a choice of one that there is not."""
    names = [tool.function.name for tool in tools or ()]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise BadRequest(f"Two tools are called '{name}'.", param=f"tools[{index}].function.name")
    if choice is None or choice in ("none", "auto"):
        return
    if not names:
        raise BadRequest("tool_choice is only allowed when there are tools.", param="tool_choice")
    _read_choice(tools or [], choice)


def check_response_format(format: ResponseFormat | None) -> None:
    """Raises ``BadRequest`` for a ``json_schema`` without its schema."""
    if isinstance(format, JsonSchemaFormat) and format.json_schema.schema is None:
        raise BadRequest(
            "Missing required parameter: 'response_format.json_schema.schema'.",
            param="response_format.json_schema.schema",
        )


def _read_choice(tools: list[FunctionTool], choice: ToolChoice | None) -> tuple[str, list[str]]:
    """Mode and names of ``choice``; no names mean that all tools may be called."""
    named: list[str] = []
    mode = "auto"
    if isinstance(choice, NamedToolChoice):
        mode, named = "required", [choice.function.name]
    elif isinstance(choice, AllowedToolChoice):
        mode, named = choice.allowed_tools.mode, [each.function.name for each in choice.allowed_tools.tools]
    elif choice is not None:
        mode = choice
    known = {tool.function.name for tool in tools}
    for name in named:
        if name not in known:
            raise BadRequest(f"tool_choice names '{name}', which is none of the tools.", param="tool_choice")
    return mode, named
