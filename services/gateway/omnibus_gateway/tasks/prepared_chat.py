"""A chat request as input of a composite task.

Chats of one kind have the same graph of a composite task, except for its literals. A kind is everything that ``invoke``
may read: modalities, voice, audio output, and estimates of work. Everything else, which is messages, parameters and
media, is a hole of a skeleton (``omnibus.task.skeleton``). The skeleton is recorded and verified once, and filled for
each request. Texts travel in the invocation, media and long texts in the arena.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import count
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from omnibus.errors import OmnibusError, TooLarge
from omnibus.graph import encode_input
from omnibus.plan import Plan
from omnibus.profile import QUANTITIES
from omnibus.store import AdapterRecord
from omnibus.task import ChatInput, ChatOutput, CompositeTask, Segment, record, replay
from omnibus.task.input_codec import Hole
from omnibus.task.library.chat import ChoicesInput
from omnibus.task.skeleton import Skeleton, record_skeleton
from omnibus_gateway.media import inspect as openai_media
from omnibus_gateway.media.inspect import InspectedMedia
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.options import (
    GUIDED,
    JsonObjectFormat,
    JsonSchemaFormat,
    template_places,
    tool_params,
    vllm_params,
)
from omnibus_gateway.pricing.meter import Estimates
from omnibus_gateway.request.inputs import MAX_READERS, place_input
from omnibus_gateway.request.request import ClientRequest, RequestFactory
from omnibus_gateway.routing.assignment import FALLBACK, NEUTRAL, NEUTRAL_TEMPERATURE, Assignment, ModelSampling
from omnibus_gateway.routing.router import Router
from omnibus_gateway.tenancy.tenant import current_tenant

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
    if request.drops_history:
        params["drop_history"] = True
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


#: Bytes of messages above which they are sent by handle.
MAX_INLINE_BYTES = 16 * 1024
#: Tokens of an answer without a limit, for estimates.
DEFAULT_ANSWER_TOKENS = 256
#: Mask of a seed, and the largest seed.
MAX_SEED = 2**63 - 1
_PROMPT_INDEX = QUANTITIES.index("prompt_tokens")
_MEDIA_INDEX = {modality: QUANTITIES.index(f"{modality}_tokens") for modality in ("image", "video", "audio")}
#: Approximate bytes of messages per token.
BYTES_PER_TOKEN = 4
#: Sampling of a talker, unless the request is greedy (the defaults of Qwen2.5-Omni).
SPEECH = {"temperature": 0.9, "top_k": 40, "top_p": 0.8, "repetition_penalty": 1.05}
GREEDY_SPEECH = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}

_read_speech_options = attrgetter(*SPEECH)
_NO_SPEECH_OPTIONS = (None,) * len(SPEECH)


class PreparedChat:
    """Parsed chat request: the input of a composite task, and the media that are not placed yet.

    With ``say``, that text is the answer, and the model makes only its audio. ``usual`` completes its sampling.
    """

    def __init__(
        self,
        request: ChatRequest,
        messages: list[dict[str, Any]],
        items: list[InspectedMedia],
        voice: str = "",
        say: str = "",
        family: str = "",
        usual: ModelSampling = NEUTRAL,
    ) -> None:
        self.model = request.model
        self.body = encode_input(messages)
        self.items = items
        speech = _speech_params(request, usual.values)
        #: Key of the conversation for executors; empty for none.
        self.cache_key = hash_cache_key(request.prompt_cache_key) if request.prompt_cache_key else ""
        params = sampling_params(request, usual) | ({"say": say} if say else {})
        if self.cache_key:
            params["cache_key"] = self.cache_key
        self.params = encode_input(params)
        #: Parameters of each answer, if there are several.
        self.choices = () if request.n is None or request.n == 1 else _choice_params(request, params)
        several: dict[str, Any] = {"choices": tuple(map(msgspec.Raw, self.choices))} if self.choices else {}
        self.input = (ChoicesInput if self.choices else ChatInput).model_construct(
            **several,
            messages=msgspec.Raw(self.body),
            media=tuple({"modality": item.info.modality, "sha256": item.info.sha256} for item in items),
            modalities=tuple(item.info.modality for item in items),
            params=msgspec.Raw(self.params),
            voice=voice,
            speech=_encode_raw(speech) if speech is not None else None,
            tokens=tuple([openai_media.estimate_tokens(item.info, family) for item in items]),
            # In powers of two: requests of one kind share a graph, and estimates need no finer steps.
            prompt=1 << max(5, (len(self.body) // BYTES_PER_TOKEN).bit_length()),
            answer=len(say) // 4 + 1 if say else request.token_limit or DEFAULT_ANSWER_TOKENS,
        )

        #: True if the answer always has the maximum number of tokens.
        self.answers_whole = bool(say or request.ignore_eos)
        text = len(self.body) / BYTES_PER_TOKEN
        self.estimates: Estimates = ((_PROMPT_INDEX, text),)
        if items:
            media = zip(self.input.modalities, self.input.tokens, strict=True)
            media_estimates = [(_MEDIA_INDEX[modality], float(tokens)) for modality, tokens in media]
            self.estimates = ((_PROMPT_INDEX, text + sum(self.input.tokens)), *media_estimates)

    def use_adapter(self, name: str, adapter: AdapterRecord | None = None) -> None:
        """Use the adapter ``name``; ``adapter`` is its record if it was loaded at runtime."""
        adapter_params: dict[str, Any] = {"adapter": name}
        if adapter is not None:
            adapter_params["adapter_source"] = {"path": adapter.path, "sha256": adapter.sha256}
        self.params, *choices = (
            encode_input({**msgspec.json.decode(body), **adapter_params}) for body in (self.params, *self.choices)
        )
        self.choices = tuple(choices)
        several = {"choices": tuple(map(msgspec.Raw, choices))} if choices else {}
        self.input = self.input.model_copy(update={"params": msgspec.Raw(self.params), **several})

    def count_only(self) -> None:
        """Only count the tokens of the prompt."""
        self.params = encode_input({**msgspec.json.decode(self.params), "count_only": True})
        self.input = self.input.model_copy(update={"params": msgspec.Raw(self.params), "answer": 1})

    def report_prompt(self) -> None:
        """Only return the tokens of the prompt."""
        self.count_only()
        self.params = encode_input({**msgspec.json.decode(self.params), "report_prompt": True})
        self.input = self.input.model_copy(update={"params": msgspec.Raw(self.params)})

    def prefill_only(self) -> None:
        """Only compute and cache the prompt for its conversation.

        With audio output, this includes the inputs of the talker.
        """
        self.params = encode_input({**msgspec.json.decode(self.params), "prefill_only": True})
        self.input = self.input.model_copy(update={"params": msgspec.Raw(self.params), "speech": None, "answer": 1})

    @property
    def needs_arena(self) -> bool:
        """True if an input must be placed in the arena."""
        long = len(self.body) > MAX_INLINE_BYTES or len(self.params) > MAX_INLINE_BYTES
        return long or bool(self.items) or (bool(self.choices) and len(max(self.choices, key=len)) > MAX_INLINE_BYTES)


def hash_cache_key(key: str) -> str:
    """Hash ``key`` with the current tenant: tenants must not share keys."""
    return sha256(f"{current_tenant().name}\n{key}".encode()).hexdigest()[:24]


def _choice_params(request: ChatRequest, params: dict[str, Any]) -> tuple[bytes, ...]:
    """Return the parameters of each answer; a seed of the request increases by 1 per answer."""
    if request.seed is None:
        return (encode_input(params),) * request.choice_count
    seeds = [(request.seed + place) & MAX_SEED for place in range(request.choice_count)]
    return tuple(encode_input({**params, "seed": seed}) for seed in seeds)


def _encode_raw(value: Any) -> msgspec.Raw:
    """Encode ``value`` once: recording, dispatch and the record reuse the bytes."""
    return msgspec.Raw(encode_input(value))


def _speech_params(request: ChatRequest, usual: Mapping[str, float]) -> dict[str, Any] | None:
    if not request.wants_audio or request.audio is None:
        return None
    audio = request.audio
    how = GREEDY_SPEECH if request.temperature == 0 else SPEECH
    if usual and how is SPEECH:
        how = {name: usual.get(f"talker_{name}", value) for name, value in SPEECH.items()}
    most = {"max_codes": audio.max_tokens} if audio.max_tokens else {}  # else the default of the talker
    if _read_speech_options(audio) == _NO_SPEECH_OPTIONS:
        return {**how, **most}
    audio_params = {name: value for name in how if (value := getattr(audio, name)) is not None}
    if "top_k" in audio_params:
        audio_params["top_k"] = max(0, audio_params["top_k"])
    return {**how, **audio_params, **most}


log = logging.getLogger(__name__)

#: Maximum number of kinds per plan.
MAX_KINDS = 256


class ChatKind(NamedTuple):
    """Graph of all chats of one kind, assigned by ``plan``."""

    plan: Plan | None
    skeleton: Skeleton
    assignment: Assignment

    @property
    def segment(self) -> Segment:
        """Graph with holes; its executors are already known."""
        return self.skeleton.segment

    def fill(self, chat_input: ChatInput) -> tuple[Segment, Assignment]:
        """Return the graph of ``chat_input``, whose inputs are placed, and its assignment."""
        segment = self.skeleton.fill(_literals(chat_input))
        kind = self.assignment
        return segment, Assignment(kind.model, kind.kind, kind.parts, segment.nodes)


class RequestGraph(NamedTuple):
    """Graph of one request, and its assignment if known. ``bind`` builds the answer from its streams."""

    segment: Segment
    assignment: Assignment | None
    bind: Callable[[Mapping[tuple[int, str], Any]], ChatOutput]


class ChatKinds:
    """Cache of kinds for the current plan. One in ``verify_every`` requests is still recorded in full."""

    def __init__(self, runs: RequestFactory, verify_every: int) -> None:
        self._runs = runs
        self._every = max(1, verify_every)
        self._plan: Plan | None = None
        self._kinds: dict[object, ChatKind | None] = {}
        self._excluded: set[str] = set()  # models whose task depends on more than the kind
        self._requests = count(1)

    def find_kind(self, model: str, task: CompositeTask, chat_input: ChatInput) -> ChatKind | None:
        """Return the kind of ``chat_input`` for ``task`` of ``model``; None if it must be recorded separately.

        Raises as ``Router.assign``.
        """
        if self._plan is not self._runs.router.plan:
            self._plan = self._runs.router.plan
            self._kinds.clear()
            self._excluded.clear()
        if model in self._excluded:
            return None
        key = (
            model,
            chat_input.modalities,
            chat_input.voice,
            chat_input.speech is None,
            chat_input.tokens,
            chat_input.prompt,
            chat_input.answer,
        )
        if key not in self._kinds:
            if len(self._kinds) >= MAX_KINDS:
                self._kinds.clear()
            self._kinds[key] = self._record_kind(model, task, chat_input)
        return self._kinds[key]

    def _record_kind(self, model: str, task: CompositeTask, chat_input: ChatInput) -> ChatKind | None:
        holes = [Hole() for _ in _literals(chat_input)]
        messages, params, speech, *media = holes
        open_literals: dict[str, Any] = {"messages": messages, "params": params, "media": tuple(media)}
        if chat_input.speech is not None:
            open_literals["speech"] = speech
        try:
            skeleton = record_skeleton(task.invoke, chat_input.model_copy(update=open_literals), holes)
        except OmnibusError as error:  # an invalid request raises this again when it is recorded
            log.debug("%s has no graph by kind: %s", model, error)
            return None
        if skeleton is None:
            return None
        assignment = self._runs.router.assign(skeleton.segment.nodes, model)
        return ChatKind(self._runs.router.plan, skeleton.with_nodes(assignment.nodes), assignment)

    def known_assignment(self, kind: ChatKind | None) -> Assignment | None:
        """Return the assignment of ``kind``; None after a change of plan."""
        return kind.assignment if kind is not None and kind.plan is self._runs.router.plan else None

    def build_graph(
        self, kind: ChatKind | None, run: ClientRequest, task: CompositeTask, chat_input: ChatInput
    ) -> RequestGraph:
        """Build the graph of ``chat_input``, of this ``kind``, whose inputs are placed.

        Raises as ``record`` and ``Router.assign``.
        """
        if kind is not None and kind.plan is not self._runs.router.plan:
            kind = self.find_kind(run.model, task, chat_input)
        if kind is not None and next(self._requests) % self._every:
            segment, assignment = kind.fill(chat_input)
            return RequestGraph(segment, assignment, kind.skeleton.bind_answer)
        recorded_segment = record(task.invoke, chat_input, run.choice_point)
        if kind is not None:
            self._compare_graphs(kind, run.model, chat_input, recorded_segment)
        return RequestGraph(recorded_segment, None, partial(replay, task.invoke, chat_input, recorded_segment))

    def _compare_graphs(self, kind: ChatKind, model: str, chat_input: ChatInput, recorded_segment: Segment) -> None:
        """Compare the graph of a request with that of its kind; exclude the model if they differ."""
        filled_segment, assignment = kind.fill(chat_input)
        nodes = self._runs.router.assign(recorded_segment.nodes, model).nodes
        about = (recorded_segment.outputs, recorded_segment.work, recorded_segment.pins, recorded_segment.choices)
        if nodes != assignment.nodes or about != (
            filled_segment.outputs,
            filled_segment.work,
            filled_segment.pins,
            filled_segment.choices,
        ):
            self._excluded.add(model)
            log.error(
                "requests of one kind to %s have different graphs: its `invoke` depends on time, randomness or "
                "other state than its request. From now on, each request is recorded separately",
                model,
            )


def _literals(chat_input: ChatInput) -> list[Any]:
    return [chat_input.messages, chat_input.params, chat_input.speech, *chat_input.media]


_encode = msgspec.json.Encoder().encode


async def place_texts(
    runs: RequestFactory, run: ClientRequest, texts: Sequence[Any], param: str, max_bytes: int
) -> tuple[Any, int]:
    """Return the literal of ``texts`` and the bytes of their JSON.

    Raises ``TooLarge`` with ``param`` for more than ``max_bytes``.
    """
    body = _encode(texts)
    if len(body) > max_bytes:
        raise TooLarge(f"the texts have {len(body)} bytes, the limit is {max_bytes}", param=param)
    if len(body) <= MAX_INLINE_BYTES:
        return msgspec.Raw(body), len(body)
    content_info = ("text", "application/json", sha256(body).hexdigest())
    literal = await place_input(
        runs.tensors, run.kept, body, content_info, run.inputs_name, run.deadline, MAX_READERS, run.salt
    )
    return literal, len(body)


async def place_media(runs: RequestFactory, run: ClientRequest, item: InspectedMedia) -> dict[str, Any]:
    """Put ``item`` into the arena for ``run``; return its literal."""
    content_info = (item.info.modality, item.info.mime, item.info.sha256)
    return await place_input(
        runs.tensors, run.kept, item.data, content_info, run.inputs_name, run.deadline, MAX_READERS, run.salt
    )


async def await_result(result: Any) -> Any:
    """Return an output of a task."""
    return await result


class TaskCache:
    """Cache of the tasks that ``make`` creates, per plan epoch."""

    def __init__(self, router: Router, make: Callable[[str, Plan], CompositeTask]) -> None:
        self._router = router
        self._make = make
        self._tasks: dict[tuple[int, str], CompositeTask] = {}

    def get_task(self, name: str) -> CompositeTask:
        """Return the task of model ``name``. Raises ``NotFound``, and the errors of ``make``."""
        plan = self._router.plan
        key = (plan.epoch if plan else 0, name)
        if key not in self._tasks:
            self._router.get_model(name)
            self._tasks = {cached_key: task for cached_key, task in self._tasks.items() if cached_key[0] == key[0]}
            self._tasks[key] = self._make(name, plan)  # type: ignore[arg-type]
        return self._tasks[key]
