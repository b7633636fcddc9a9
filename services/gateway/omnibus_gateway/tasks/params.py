"""Text generation parameters of a chat request."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.tools import JsonObjectFormat, JsonSchemaFormat, tool_params
from omnibus_gateway.openai.vllm_params import GUIDED, template_places, vllm_params
from omnibus_gateway.routing.sampling_defaults import FALLBACK, NEUTRAL, NEUTRAL_TEMPERATURE, ModelSampling

#: Rarely used parameters of vLLM, read in one call.
_VLLM_FIELDS = (
    "structured_outputs", *GUIDED, "stop_token_ids", "min_tokens", "allowed_token_ids", "bad_words",
    "include_stop_str_in_output", "skip_special_tokens", "truncate_prompt_tokens", "add_generation_prompt",
    "continue_final_message",
)  # fmt: skip
_read_vllm_fields = attrgetter(*_VLLM_FIELDS)
_NO_VLLM_FIELDS = (None,) * len(_VLLM_FIELDS)
#: Sampling fields of every request, and their values if neither the request nor the model sets them.
_NEUTRAL = {"temperature": NEUTRAL_TEMPERATURE, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
#: Sampling fields of a request only if the request or the model sets them.
_RARE = ("min_p", "presence_penalty", "frequency_penalty")


def sampling_params(request: ChatRequest, usual: ModelSampling = NEUTRAL) -> dict[str, Any]:
    """Return the fields of ``omnibus.task.library.language.TextParams`` for ``request``.

    ``usual`` completes missing fields. If executors may have more defaults of their checkpoint, those fields are
    omitted.
    """
    values = usual.values
    params: dict[str, Any] = {
        "max_tokens": request.token_limit,
        "stop": list(request.stop_strings),
        "ignore_eos": bool(request.ignore_eos),
    }
    for name, neutral in _NEUTRAL.items():
        value = getattr(request, name)
        if value is not None:
            params[name] = max(value, 0)
        elif name in values or usual.complete:
            params[name] = values.get(name, neutral)
    if not usual.complete and "temperature" not in params:
        params[FALLBACK] = NEUTRAL_TEMPERATURE
    if values:
        params |= _rare_params(request, values)
    return params if is_plain(request) else params | _more_params(request)


def _rare_params(request: ChatRequest, values: Mapping[str, float]) -> dict[str, Any]:
    """Return rarely used fields: the defaults in ``values`` that ``request`` does not set."""
    params = {name: values[name] for name in _RARE if name in values and getattr(request, name) is None}
    if "max_tokens" in values and request.token_limit is None and not request.ignore_eos:
        params["usual_tokens"] = values["max_tokens"]
    return params


def is_plain(request: ChatRequest) -> bool:
    """Return True if ``request`` has only common fields."""
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
        and _read_vllm_fields(request) == _NO_VLLM_FIELDS
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
    more |= vllm_params(request)
    template = {**(request.chat_template_kwargs or {}), **template_places(request)}
    if request.reasoning_effort is not None:
        template["reasoning_effort"] = request.reasoning_effort
    return {**more, "template": template} if template else more


def structured_outputs(request: ChatRequest) -> dict[str, Any] | None:
    """Return the required format of the text; None for free text."""
    match request.response_format:
        case JsonObjectFormat():
            return {"json_object": True}
        case JsonSchemaFormat(asked):
            return {"json": asked.schema}
    return None
