"""Tools, calls and other options of a chat, as a chat template takes them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from omnibus.errors import BadRequest
from omnibus_models.contract import PromptOptions
from omnibus_models.tool_calls import Tool, ToolFormat

#: What stands around reasoning.
THINK, THINK_END = "<think>", "</think>"
#: How a request says how long to think, and variables of templates that can obey it.
EFFORT = "reasoning_effort"
_THINKING = "enable_thinking"
#: Where an answer begins: behind the words that open one, and behind the last message as far as that goes.
PLACES = frozenset({"add_generation_prompt", "continue_final_message"})


def adapt_options(options: PromptOptions, template: str, mark: Callable[[Any], str]) -> PromptOptions:
    """``options`` with the variables that this ``template`` knows, each text as ``mark`` has it.

    Raises ``BadRequest`` for what cannot be obeyed: an effort of models that do not think, and names that would change
    how the template is applied.
    """
    given = dict(options.template)
    for name in given:
        if name in _reserved_names() - PLACES:
            raise BadRequest(f"{name} is no variable of a chat template; leave it out", param="chat_template_kwargs")
    effort = given.get(EFFORT)
    if effort is not None and EFFORT not in template:
        del given[EFFORT]
        if _THINKING in template:
            given.setdefault(_THINKING, effort != "none")
        elif effort != "none":
            raise BadRequest("this model does not think before it answers; leave reasoning_effort out", param=EFFORT)
    return PromptOptions(_mark_texts(options.tools, mark), _mark_texts(given, mark))


def _mark_texts(value: Any, mark: Callable[[Any], str]) -> Any:
    """``value``, which is JSON, with each of its texts as ``mark`` has it."""
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
    """``messages`` with ``tools``, calls and their results as text, for a template that knows of none of them.

    Texts in arguments are as ``mark`` has them: what a message of an assistant holds may be the model's own.
    """
    written = [_write_calls(message, format, mark) for message in messages]
    if not tools:
        return written
    told = format.describe_tools(tools)
    if written[0].get("role") != "system":
        return [{"role": "system", "content": told}, *written]
    first = {**written[0], "content": _append_text(written[0].get("content"), f"\n\n{told}")}
    return [first, *written[1:]]


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
    """Fields of ``message`` besides role and content, each text as ``mark`` has it. Raises ``BadRequest``."""
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
