"""Tools, calls and other options of a chat, for chat templates."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from omnibus.errors import BadRequest
from omnibus_models.contract import PromptOptions
from omnibus_models.tool_calls import Tool, ToolFormat

#: Marks around reasoning.
THINK, THINK_END = "<think>", "</think>"
#: Request parameter for the length of reasoning, and variables of templates that implement it.
EFFORT = "reasoning_effort"
#: True if the effort is only a hint, which a model that does not think ignores.
EFFORT_HINT = "reasoning_effort_hint"
_THINKING = "enable_thinking"
#: Template variables for the start of an answer: after the words that open one, or continuing the last message.
PLACES = frozenset({"add_generation_prompt", "continue_final_message"})


def adapt_options(options: PromptOptions, template: str, mark: Callable[[Any], str]) -> PromptOptions:
    """Return ``options`` with the variables of ``template``, texts passed through ``mark``.

    Raises ``BadRequest`` for an effort if the model does not think, unless it is a hint. Also raises it for reserved
    names, which would change how the template is applied.
    """
    variables = dict(options.template)
    for name in variables:
        if name in _reserved_names() - PLACES:
            raise BadRequest(f"{name} is not a variable of chat templates; leave it out", param="chat_template_kwargs")
    effort, is_hint = variables.get(EFFORT), variables.pop(EFFORT_HINT, False)
    if effort is not None and EFFORT not in template:
        del variables[EFFORT]
        if _THINKING in template:
            variables.setdefault(_THINKING, effort != "none")
        elif effort != "none" and not is_hint:
            raise BadRequest("this model does not think before it answers; leave reasoning_effort out", param=EFFORT)
    return PromptOptions(_mark_texts(options.tools, mark), _mark_texts(variables, mark))


def _mark_texts(value: Any, mark: Callable[[Any], str]) -> Any:
    """Return the JSON ``value`` with each text passed through ``mark``."""
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, Mapping):
        return {mark(key): _mark_texts(each, mark) for key, each in value.items()}
    return [_mark_texts(each, mark) for each in value] if isinstance(value, list | tuple) else value


@cache
def _reserved_names() -> frozenset[str]:
    from transformers import PreTrainedTokenizerBase

    parameters = inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters
    return frozenset({*parameters, "messages", "add_special_tokens"} - {"documents"})


def write_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], format: ToolFormat, mark: Callable[[Any], str]
) -> list[Mapping[str, Any]]:
    """Return ``messages`` with ``tools``, calls and results as text.

    It is for templates without tools. Texts in arguments are passed through ``mark``: an assistant's message may
    contain the model's own tokens.
    """
    messages_as_text = [_write_calls(message, format, mark) for message in messages]
    if not tools:
        return messages_as_text
    description = format.describe_tools(tools)
    if messages_as_text[0].get("role") != "system":
        return [{"role": "system", "content": description}, *messages_as_text]
    first = {**messages_as_text[0], "content": _append_text(messages_as_text[0].get("content"), f"\n\n{description}")}
    return [first, *messages_as_text[1:]]


def _write_calls(message: Mapping[str, Any], format: ToolFormat, mark: Callable[[Any], str]) -> Mapping[str, Any]:
    if message.get("role") == "tool":
        content = message.get("content")
        text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())
        return {"role": "user", "content": format.write_result(str(message.get("name", "")), text)}
    if not message.get("tool_calls"):
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    calls = "\n".join(format.write_call(each["name"], _mark_texts(each["arguments"], mark)) for each in functions)
    content = message.get("content")
    return {"role": "assistant", "content": _append_text(content, f"\n{calls}") if content else calls}


def _append_text(content: Any, text: str) -> Any:
    return content + text if isinstance(content, str) else [*content, {"type": "text", "text": text}]


def convert_extras(message: Mapping[str, Any], mark: Callable[[Any], str]) -> dict[str, Any]:
    """Return further fields of ``message``, texts passed through ``mark``. Raises ``BadRequest``."""
    more: dict[str, Any] = {}
    for name in ("reasoning_content", "name", "tool_call_id"):
        if message.get(name):
            more[name] = mark(message[name])
    if message.get("tool_calls"):
        more["tool_calls"] = [_convert_call(call, mark) for call in message["tool_calls"]]
    return more


def _convert_call(call: Any, mark: Callable[[Any], str]) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), Mapping):
        raise BadRequest("a tool call needs a function with a name and an object of arguments", param="messages")
    name, arguments = mark(function.get("name")), _mark_texts(function["arguments"], mark)
    return {"id": str(call.get("id", "")), "type": "function", "function": {"name": name, "arguments": arguments}}
