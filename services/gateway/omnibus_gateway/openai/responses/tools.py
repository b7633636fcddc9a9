"""Tools of agents in responses: free text, shells, patches, and groups of functions.

A model calls each of them as a function whose arguments are JSON. The gateway converts such calls to the items that
agents expect, and items of earlier turns back to calls. Source: the types of the ``openai`` package, 3.52.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from omnibus.errors import BadRequest
from omnibus_gateway.openai.options import MAX_TOOLS, Description, FunctionCall, FunctionDefinition, Name
from omnibus_gateway.openai.responses.items import (
    IMAGE_TOOL,
    IMAGE_TOOL_DESCRIPTION,
    IMAGE_TOOL_PARAMETERS,
    ApplyPatchCall,
    ApplyPatchCallOutput,
    CallItem,
    CustomToolCall,
    FlatFunctionTool,
    FunctionCallItem,
    ImageGenerationTool,
    LocalShellAction,
    LocalShellCall,
    LocalShellCallOutput,
    PatchOperation,
    ShellAction,
    ShellCall,
    ShellCallOutput,
)

#: Names of the functions that represent tools without a name.
LOCAL_SHELL, SHELL, APPLY_PATCH = "local_shell", "shell", "apply_patch"
#: Between the names of a group and its function, in the name that the model sees.
_GROUP_MARK = "."
#: The only argument of a call with free text.
_INPUT = "input"


class AnyInputFormat(Struct, frozen=True, tag_field="type", tag="text"):
    """Any text."""


class GrammarInputFormat(Struct, frozen=True, tag_field="type", tag="grammar"):
    """Text that matches ``definition``."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Meta(min_length=1, max_length=1 << 17)]


class FreeTextTool(Struct, frozen=True, tag_field="type", tag="custom"):
    """A tool whose input is free text."""

    name: Name
    description: Description | None = None
    format: AnyInputFormat | GrammarInputFormat | None = None


class LocalShellTool(Struct, frozen=True, tag_field="type", tag="local_shell"):
    """A shell of the client, which runs one command of a call."""


class ShellEnvironment(Struct, frozen=True):
    """The place of a shell. Only the client's own, ``local``, is supported."""

    type: str


class ShellTool(Struct, frozen=True, tag_field="type", tag="shell"):
    """A shell of the client, which runs several commands of a call."""

    environment: ShellEnvironment | None = None


class ApplyPatchTool(Struct, frozen=True, tag_field="type", tag="apply_patch"):
    """Changes of the client's files, one file per call."""


class ToolNamespace(Struct, frozen=True, tag_field="type", tag="namespace"):
    """A group of functions."""

    name: Name
    tools: Annotated[list[FlatFunctionTool | FreeTextTool], Meta(max_length=MAX_TOOLS)]
    description: Description | None = None


AgentTool = FreeTextTool | LocalShellTool | ShellTool | ApplyPatchTool
ResponseTool = FlatFunctionTool | ImageGenerationTool | AgentTool | ToolNamespace


class NamedCustomChoice(Struct, frozen=True, tag_field="type", tag="custom", forbid_unknown_fields=True):
    """The choice of one custom tool that the model must call."""

    name: Name


class ShellChoice(Struct, frozen=True, tag_field="type", tag="shell", forbid_unknown_fields=True):
    """A choice that requires a call of the shell."""


class ApplyPatchChoice(Struct, frozen=True, tag_field="type", tag="apply_patch", forbid_unknown_fields=True):
    """A choice that requires a patch."""


def _object(names: Sequence[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*names], "additionalProperties": False}


_STRING = {"type": "string"}
_STRINGS = {"type": "array", "items": _STRING, "minItems": 1}
_MILLISECONDS = {"type": "integer", "minimum": 1, "description": "Limit of the time, in milliseconds."}
_FUNCTIONS: Mapping[type, FunctionDefinition] = {
    LocalShellTool: FunctionDefinition(
        LOCAL_SHELL,
        "Run a command on the user's machine. It is a program and its arguments; for a line of shell, use bash -lc.",
        _object(["command"], command=_STRINGS, working_directory=_STRING, timeout_ms=_MILLISECONDS),
    ),
    ShellTool: FunctionDefinition(
        SHELL,
        "Run lines of shell on the user's machine, one after the other.",
        _object(["commands"], commands=_STRINGS, timeout_ms=_MILLISECONDS),
    ),
    ApplyPatchTool: FunctionDefinition(
        APPLY_PATCH,
        "Create, change or delete a file of the user. The diff has lines that begin with a space, + or -, and @@ "
        "before each changed place. It is empty to delete a file.",
        _object(
            ["type", "path", "diff"],
            type={"enum": ["create_file", "update_file", "delete_file"]},
            path=_STRING,
            diff=_STRING,
        ),
    ),
}


def tool_name(tool: ResponseTool) -> str:
    """Return the name of the function that represents ``tool``; that of a group is its own."""
    if isinstance(tool, ImageGenerationTool):
        return IMAGE_TOOL
    return (
        tool.name if isinstance(tool, FlatFunctionTool | FreeTextTool | ToolNamespace) else _FUNCTIONS[type(tool)].name
    )


def grouped_name(namespace: str | None, name: str) -> str:
    """Return the name that the model sees for a group's function."""
    return f"{namespace}{_GROUP_MARK}{name}" if namespace else name


def flatten_tools(tools: Sequence[ResponseTool]) -> Iterator[tuple[str, ResponseTool]]:
    """Yield each tool with its name for the model; groups yield their functions."""
    for tool in tools:
        if isinstance(tool, ToolNamespace):
            yield from ((grouped_name(tool.name, each.name), each) for each in tool.tools)
        else:
            yield tool_name(tool), tool


def describe_function(name: str, tool: ResponseTool) -> FunctionDefinition:
    """Return the function ``name`` that represents ``tool`` to the model."""
    match tool:
        case FlatFunctionTool():
            return FunctionDefinition(name, tool.description, tool.parameters, tool.strict)
        case FreeTextTool():
            pattern = (
                {"pattern": f"^(?:{tool.format.definition})$"} if isinstance(tool.format, GrammarInputFormat) else {}
            )
            return FunctionDefinition(name, tool.description, _object([_INPUT], **{_INPUT: {**_STRING, **pattern}}))
        case ImageGenerationTool():
            return FunctionDefinition(name, IMAGE_TOOL_DESCRIPTION, IMAGE_TOOL_PARAMETERS)
    return _FUNCTIONS[type(tool)]


def _describe_input(tool: FreeTextTool) -> dict[str, Any]:
    if isinstance(tool.format, GrammarInputFormat):
        return {**_STRING, "pattern": f"^(?:{tool.format.definition})$"}
    return _STRING


def check_agent_tools(tools: Sequence[ResponseTool], *, has_grammar: bool) -> None:
    """Raises ``BadRequest`` for an unsupported tool. ``has_grammar``: whether a grammar constrains calls."""
    for index, tool in enumerate(tools):
        param = f"tools[{index}]"
        if isinstance(tool, ShellTool) and tool.environment is not None and tool.environment.type != "local":
            raise BadRequest(
                "Commands cannot run here: set the type of environment to local, and run them in the client.",
                param=f"{param}.environment",
            )
        members = tool.tools if isinstance(tool, ToolNamespace) else [tool]
        for each in members:
            if isinstance(each, FreeTextTool) and isinstance(each.format, GrammarInputFormat):
                _check_grammar(each.format, f"{param}.format", has_grammar=has_grammar)


def _check_grammar(grammar: GrammarInputFormat, param: str, *, has_grammar: bool) -> None:
    if grammar.syntax == "lark":
        raise BadRequest(
            "A Lark grammar cannot be enforced inside a tool call: use the syntax regex, or the type text.", param=param
        )
    if not has_grammar:
        raise BadRequest(
            "A grammar applies only to required calls: set tool_choice to required or to this tool, or the type to "
            "text.",
            param=param,
        )
    try:
        re.compile(grammar.definition)
    except re.error as error:
        raise BadRequest(f"The regular expression is invalid: {error}.", param=f"{param}.definition") from None


class ToolCallFormat:
    """Kinds of calls of ``tools``, by the names that the model sees."""

    def __init__(self, tools: Sequence[ResponseTool]) -> None:
        self._tools = dict(flatten_tools(tools))
        self._groups = {
            grouped_name(tool.name, each.name): tool.name
            for tool in tools
            if isinstance(tool, ToolNamespace)
            for each in tool.tools
        }

    def find_kind(self, name: str) -> str:
        """Return the type of the items for calls of ``name``."""
        return _KINDS.get(type(self._tools.get(name)), "function_call")

    def build_call(self, name: str, arguments: str, call_id: str, id: str, status: Any) -> Any:
        """Build the item of a call; ``arguments`` may be incomplete."""
        group = self._groups.get(name, msgspec.UNSET)
        own_name = name.removeprefix(f"{group}{_GROUP_MARK}") if isinstance(group, str) else name
        match self.find_kind(name):
            case "custom_tool_call":
                return CustomToolCall(call_id, own_name, read_input(arguments), id, status, group)
            case "local_shell_call":
                return LocalShellCall(call_id, _local_action(_read_object(arguments)), id, status)
            case "shell_call":
                return ShellCall(call_id, _shell_action(_read_object(arguments)), id, status)
            case "apply_patch_call":
                return ApplyPatchCall(call_id, _operation(_read_object(arguments)), id, status)
        return FunctionCallItem(call_id, own_name, arguments, id, status, group)


_KINDS: Mapping[type, str] = {
    FreeTextTool: "custom_tool_call",
    LocalShellTool: "local_shell_call",
    ShellTool: "shell_call",
    ApplyPatchTool: "apply_patch_call",
}


#: Calls of functions only.
PLAIN_CALLS = ToolCallFormat(())
#: Prefixes of the ids of calls by their kind.
ID_PREFIXES = {
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
    "local_shell_call": "lsh_",
    "shell_call": "sh_",
    "apply_patch_call": "apc_",
}


def read_call(item: CallItem) -> FunctionCall:
    """Return the call of an earlier turn as the model wrote it."""
    match item:
        case FunctionCallItem():
            return FunctionCall(grouped_name(item.namespace or "", item.name), item.arguments)
        case CustomToolCall():
            return FunctionCall(grouped_name(item.namespace or "", item.name), write_input(item.input))
        case LocalShellCall(_, action):
            return FunctionCall(LOCAL_SHELL, _write_object(action, ("command", "working_directory", "timeout_ms")))
        case ShellCall(_, action):
            return FunctionCall(SHELL, _write_object(action, ("commands", "timeout_ms")))
        case ApplyPatchCall(_, operation):
            arguments = {"type": operation.type, "path": operation.path, "diff": operation.diff or ""}
            return FunctionCall(APPLY_PATCH, json.dumps(arguments, ensure_ascii=False))


def read_output(item: LocalShellCallOutput | ShellCallOutput | ApplyPatchCallOutput) -> str:
    """Return the text of a result for the model."""
    match item:
        case LocalShellCallOutput(output):
            return output
        case ShellCallOutput(_, outputs):
            return json.dumps(outputs, ensure_ascii=False)
        case ApplyPatchCallOutput(_, status, output):
            return f"{status}: {output}" if output else status


def _write_object(action: Struct, names: Sequence[str]) -> str:
    values = {name: getattr(action, name) for name in names}
    return json.dumps({name: value for name, value in values.items() if value is not None}, ensure_ascii=False)


def _read_object(arguments: str) -> dict[str, Any]:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _texts(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [value] if isinstance(value, str) else []


def _number(value: Any) -> int | None:
    return value if type(value) is int else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _local_action(value: Mapping[str, Any]) -> LocalShellAction:
    return LocalShellAction(
        _texts(value.get("command")),
        timeout_ms=_number(value.get("timeout_ms")),
        working_directory=_text(value.get("working_directory")),
    )


def _shell_action(value: Mapping[str, Any]) -> ShellAction:
    return ShellAction(_texts(value.get("commands")), _number(value.get("timeout_ms")))


def _operation(value: Mapping[str, Any]) -> PatchOperation:
    diff, path = _text(value.get("diff")) or "", _text(value.get("path")) or ""
    match value.get("type"):
        case "delete_file":
            return PatchOperation("delete_file", path)
        case "create_file":
            return PatchOperation("create_file", path, diff)
    return PatchOperation("update_file", path, diff)


#: The beginning of the arguments of a call with free text.
_INPUT_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
#: Characters of a JSON string up to its end or to an unfinished escape sequence. A pair of surrogates is one character.
_STRING_BODY = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*'
)


def read_input(arguments: str) -> str:
    """Return the free text in ``arguments``, as far as it is complete.

    Arguments that are not an object with ``input`` are the text themselves.
    """
    whole = _read_object(arguments).get(_INPUT)
    if isinstance(whole, str):
        return whole.encode(errors="replace").decode()
    head = _INPUT_HEAD.match(arguments)
    body = _STRING_BODY.match(arguments, head.end()) if head is not None else None
    return str(json.loads(f'"{body.group()}"', strict=False)) if body is not None else arguments


def could_be_input(arguments: str) -> bool:
    """Return whether the text in unfinished ``arguments`` can be read."""
    return _INPUT_HEAD.match(arguments) is not None


def write_input(text: str) -> str:
    """Return the arguments of an earlier call with free ``text``."""
    return json.dumps({_INPUT: text}, ensure_ascii=False)
