"""Options of chats: tools, the format of an answer, and the parameters of vLLM's server.

Sources: the request types of the ``openai`` package, 3.52, and ``vllm/entrypoints/openai/*/protocol.py`` of vLLM 0.32
with the ``guided_*`` parameters of earlier versions. Both engines obey vLLM's parameters, or the gateway suggests an
alternative: docs/routes.md has the table.
"""

from collections.abc import Callable, Mapping
from operator import attrgetter
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


TokenNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopTokens = Annotated[list[TokenNumber], Meta(max_length=1024)]
AllowedTokens = Annotated[list[TokenNumber], Meta(min_length=1, max_length=1 << 17)]
BadWords = Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=1024)]
MinTokens = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TruncateTokens = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Pattern = Annotated[str, Meta(min_length=1, max_length=1 << 17)]
Choices = Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=4096)]


class StructuredOutputs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One constraint on the answer. ``json`` is a schema, also as text; ``grammar`` is in Lark or GBNF format."""

    json: dict[str, Any] | str | None = None
    regex: Pattern | None = None
    choice: Choices | None = None
    grammar: Pattern | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    disable_any_whitespace: bool | None = None  # accepted: answers always have the same layout
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


class VllmParams(Struct, frozen=True, kw_only=True):
    """Parameters of vLLM for requests that generate text. None means that the client did not set the field."""

    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    guided_grammar: Pattern | None = None
    stop_token_ids: StopTokens | None = None
    min_tokens: MinTokens | None = None
    allowed_token_ids: AllowedTokens | None = None
    bad_words: BadWords | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None  # no tokenizer here adds any
    truncate_prompt_tokens: TruncateTokens | None = None
    prompt_logprobs: Any = None
    priority: Any = None
    mm_processor_kwargs: Any = None
    sampling_params_list: Any = None

    @property
    def has_vllm_shape(self) -> bool:
        """True if one of these parameters constrains the answer."""
        return _read_shapes(self) != _NO_SHAPES

    def vllm_params(self) -> dict[str, Any]:
        """Return only these parameters."""
        return {name: getattr(self, name) for name in VllmParams.__struct_fields__}


#: Parameters that are sent to engines unchanged, with the values that have no effect.
_SENT: Mapping[str, Any] = {
    "stop_token_ids": [],
    "min_tokens": 0,
    "allowed_token_ids": None,
    "bad_words": [],
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "truncate_prompt_tokens": None,
}
#: Options of the chat template that decide where an answer begins.
_PLACES = ("add_generation_prompt", "continue_final_message")
#: Names of constraints before ``structured_outputs``.
GUIDED: Mapping[str, str] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
_SHAPES = ("structured_outputs", *GUIDED)
_KINDS = ("json", "regex", "choice", "grammar", "json_object")
_read_shapes = attrgetter(*_SHAPES)
_NO_SHAPES = (None,) * len(_SHAPES)


def _is_nothing(value: Any) -> bool:
    return not value


#: Unsupported parameters: values that have no effect, and the alternative.
_REJECTED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "echo": (_is_nothing, "A chat does not repeat its messages: use /v1/completions with echo."),
    "best_of": (lambda value: value == 1, "All generated answers are returned: use n."),
    "prompt_logprobs": (lambda value: False, "Prompts have no logprobs: use logprobs for those of the answer."),
    "priority": (
        _is_nothing,
        "Requests share the system fairly by tenant: use a key with another --weight, or a batch.",
    ),
    "mm_processor_kwargs": (
        lambda value: isinstance(value, Mapping) and not any(value.values()),
        "The checkpoint's preprocessor_config.json and video_preprocessor_config.json configure media: set "
        "min_pixels, max_pixels and fps there, or scale media before you send them. Send the audio of a video as a "
        "separate part.",
    ),
    "sampling_params_list": (
        _is_nothing,
        "Only one dialect has parameters per stage: send the header X-Omnibus-Dialect: vllm-omni, or "
        "use the request's parameters for text and those of audio for speech.",
    ),
}


def check_vllm_params(request: Any) -> None:
    """Raises ``BadRequest`` for unsupported parameters or combinations.

    ``request`` may be of any kind; it may lack some of the parameters.
    """
    own = ("echo", "best_of") if hasattr(request, "prompt") else ()  # completions support these
    for name, (is_harmless, instead) in _REJECTED.items():
        value = None if name in own else getattr(request, name, None)
        if value is not None and not is_harmless(value):
            raise BadRequest(f"The value of '{name}' is not supported. {instead}", param=name)
    _check_shape(request)
    limit = request.token_limit if hasattr(request, "token_limit") else request.max_tokens
    if request.min_tokens and limit is not None and request.min_tokens > limit:
        raise BadRequest(
            f"min_tokens must be at most max_tokens ({limit}), not {request.min_tokens}.", param="min_tokens"
        )
    if request.truncate_prompt_tokens == 0:
        raise BadRequest("truncate_prompt_tokens must be -1 or at least 1.", param="truncate_prompt_tokens")
    if getattr(request, "continue_final_message", None) and request.add_generation_prompt:
        raise BadRequest(
            "add_generation_prompt starts a new answer: omit it or continue_final_message.",
            param="continue_final_message",
        )


def _check_shape(request: Any) -> None:
    constraints = [name for name in _SHAPES if getattr(request, name) is not None]
    if not constraints:
        return
    if getattr(request, "response_format", None) is not None:
        constraints.append("response_format")
    if len(constraints) > 1:
        raise BadRequest(f"Only one constraint is allowed: send one of {', '.join(constraints)}.", param=constraints[1])
    outputs = request.structured_outputs
    if outputs is not None:
        _check_structured_outputs(outputs)
    shape = vllm_shape(request) or {}
    if "grammar" in shape and getattr(request, "tools", None):
        raise BadRequest(
            "tools are not supported with a grammar, which constrains the whole answer: omit tools.",
            param=constraints[0],
        )
    for name in ("ignore_eos", "min_tokens"):
        if getattr(request, name):
            raise BadRequest(f"{name} is not supported for structured answers: omit it.", param=name)


def _check_structured_outputs(outputs: StructuredOutputs) -> None:
    for name, instead in (
        ("structural_tag", "use tools with tool_choice, or grammar"),
        ("whitespace_pattern", "answers have spaces only after commas and colons; omit it"),
        ("disable_additional_properties", "set additionalProperties to false in the schema"),
    ):
        if getattr(outputs, name):
            raise BadRequest(f"The value of '{name}' is not supported: {instead}.", param=f"structured_outputs.{name}")
    kinds = [kind for kind in _KINDS if getattr(outputs, kind)]
    if len(kinds) != 1:
        raise BadRequest(
            f"structured_outputs must have exactly one of {', '.join(_KINDS)}.", param="structured_outputs"
        )


def vllm_shape(request: Any) -> dict[str, Any] | None:
    """Return the constraint in ``omnibus.structured.shapes`` format, or None. Raises ``BadRequest``."""
    outputs = request.structured_outputs
    if outputs is not None:
        for kind in _KINDS:
            if value := getattr(outputs, kind):
                return {kind: _read_schema(value, "structured_outputs.json") if kind == "json" else value}
    for name, kind in GUIDED.items():
        if (value := getattr(request, name)) is not None:
            return {kind: _read_schema(value, name) if kind == "json" else value}
    return None


def _read_schema(value: Any, param: str) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            raise BadRequest("The schema is not valid JSON.", param=param) from None
    if not isinstance(value, dict):
        raise BadRequest("The schema must be a JSON object.", param=param)
    return value


def vllm_params(request: Any) -> dict[str, Any]:
    """Return the fields of ``TextParams`` for vLLM's parameters."""
    params = {
        name: value
        for name, harmless in _SENT.items()
        if (value := getattr(request, name)) is not None and value != harmless
    }
    if shape := vllm_shape(request):
        params["structured_outputs"] = shape
    return params


def template_places(request: Any) -> dict[str, bool]:
    """Return the chat template's options for where the answer begins."""
    options = {name: value for name in _PLACES if (value := getattr(request, name)) is not None}
    return {"add_generation_prompt": False, **options} if options.get("continue_final_message") else options
