"""Parameters of text generation, from a chat request."""

from typing import Any

from services.gateway.openai.chat_request import ChatRequest
from services.gateway.openai.tools import JsonObjectFormat, JsonSchemaFormat, tool_params


def sampling_params(request: ChatRequest) -> dict[str, Any]:
    """The fields of ``omnibus.task.library.language.TextParams`` that ``request`` stands for."""
    top_k = request.top_k if request.top_k is not None and request.top_k > 0 else 0
    made = {
        "max_tokens": request.token_limit,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "top_k": top_k,
        "repetition_penalty": request.repetition_penalty or 1.0,
        "stop": list(request.stop_strings),
        "ignore_eos": bool(request.ignore_eos),
    }
    return made if is_plain(request) else made | _more_params(request)


def is_plain(request: ChatRequest) -> bool:
    """Return whether ``request`` says nothing but what nearly all do."""
    return (
        not request.tools
        and request.response_format is None
        and request.logprobs is None
        and request.logit_bias is None
        and request.min_p is None
        and request.presence_penalty is None
        and request.frequency_penalty is None
        and request.reasoning_effort is None
        and request.chat_template_kwargs is None
    )


def _more_params(request: ChatRequest) -> dict[str, Any]:
    more: dict[str, Any] = {}
    for name in ("min_p", "presence_penalty", "frequency_penalty", "logit_bias"):
        if value := getattr(request, name):
            more[name] = value
    if request.logprobs:
        more["logprobs"] = request.top_logprobs or 0
    if shape := structured_outputs(request):
        more["structured_outputs"] = shape
    parallel = request.parallel_tool_calls is not False
    more |= tool_params(request.tools or [], request.tool_choice, parallel=parallel)
    template = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        template["reasoning_effort"] = request.reasoning_effort
    return {**more, "template": template} if template else more


def structured_outputs(request: ChatRequest) -> dict[str, Any] | None:
    """The shape of an answer's text, if it may not be any text."""
    match request.response_format:
        case JsonObjectFormat():
            return {"json_object": True}
        case JsonSchemaFormat(asked):
            return {"json": asked.schema}
    return None
