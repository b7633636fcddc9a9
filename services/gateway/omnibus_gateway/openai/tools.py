"""Tools of a chat: definitions, the choice between them, calls, and the format of an answer.

Source: the request types of the ``openai`` package, 3.52.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from omnibus.errors import BadRequest

#: Limit of the tools of one request, as in OpenAI's API.
MAX_TOOLS = 128

Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]
Id = Annotated[str, Meta(min_length=1, max_length=256)]
Description = Annotated[str, Meta(max_length=65_536)]


class FunctionDefinition(Struct, frozen=True, omit_defaults=True):
    """A function that a model may call. ``parameters`` is a JSON schema, which required calls satisfy."""

    name: Name
    description: Description | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Struct, frozen=True, tag_field="type", tag="function"):
    function: FunctionDefinition


class FunctionName(Struct, frozen=True):
    name: Name


class NamedToolChoice(Struct, frozen=True, tag_field="type", tag="function"):
    """The choice of one function that the model must call."""

    function: FunctionName


class AllowedTools(Struct, frozen=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedToolChoice], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolChoice(Struct, frozen=True, tag_field="type", tag="allowed_tools"):
    """A choice that allows only some of the tools."""

    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolChoice


class FunctionCall(Struct, frozen=True):
    """A function call. ``arguments`` is the text of a JSON object."""

    name: Name
    arguments: str


class ToolCall(Struct, frozen=True, tag_field="type", tag="function"):
    """A call in an earlier answer."""

    id: Id
    function: FunctionCall


class CallDeltaFunction(Struct, frozen=True, omit_defaults=True):
    """A part of a call: more of the text of its arguments. Only the first part has the name."""

    arguments: str
    name: str | UnsetType = UNSET


class CallDelta(Struct, frozen=True, omit_defaults=True):
    """A part of call number ``index``. Only the part with the name has ``id`` and ``type``."""

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
    """Any JSON object."""


class JsonSchemaFormat(Struct, frozen=True, tag_field="type", tag="json_schema"):
    """JSON that satisfies a schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


def tool_params(tools: list[FunctionTool], choice: ToolChoice | None, *, parallel: bool) -> dict[str, Any]:
    """Convert ``tools`` and ``choice`` to parameters of text generation. Returns {} if no tool may be called.

    ``tools`` has the format of chat templates, ``tool_choice`` is ``auto`` or ``required``. Raises ``BadRequest``.
    """
    if not tools or choice == "none":
        return {}
    mode, allowed_names = _read_choice(tools, choice)
    allowed_tools = [tool for tool in tools if not allowed_names or tool.function.name in allowed_names]
    prompt_tools = tools if isinstance(choice, NamedToolChoice) else allowed_tools
    params = {"tools": msgspec.to_builtins(prompt_tools), "tool_choice": mode, "parallel_tool_calls": parallel}
    if isinstance(choice, NamedToolChoice):
        params |= {"allowed_tools": allowed_names, "parallel_tool_calls": False}
    return params


def check_tools(tools: list[FunctionTool] | None, choice: ToolChoice | None) -> None:
    """Raises ``BadRequest`` for duplicate names of tools and for unknown choices."""
    names = [tool.function.name for tool in tools or ()]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise BadRequest(f"Two tools have the name '{name}': rename one.", param=f"tools[{index}].function.name")
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
    """Return the mode and the names of ``choice``. An empty list of names allows all tools."""
    names: list[str] = []
    mode = "auto"
    if isinstance(choice, NamedToolChoice):
        mode, names = "required", [choice.function.name]
    elif isinstance(choice, AllowedToolChoice):
        mode, names = choice.allowed_tools.mode, [each.function.name for each in choice.allowed_tools.tools]
    elif choice is not None:
        mode = choice
    tool_names = {tool.function.name for tool in tools}
    for name in names:
        if name not in tool_names:
            raise BadRequest(f"Unknown tool '{name}' in tool_choice: it must be one of tools.", param="tool_choice")
    return mode, names
