"""A chat request as input of a composite task."""

from collections.abc import Mapping
from hashlib import sha256
from operator import attrgetter
from typing import Any

import msgspec

from omnibus.graph import encode_input
from omnibus.profile import QUANTITIES
from omnibus.store import AdapterRecord
from omnibus.task import ChatInput
from omnibus.task.library.choices import ChoicesInput
from omnibus_gateway.media import inspect as openai_media
from omnibus_gateway.media.inspect import InspectedMedia
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.pricing.quantities import Estimates
from omnibus_gateway.routing.sampling_defaults import NEUTRAL, ModelSampling
from omnibus_gateway.tasks.params import sampling_params
from omnibus_gateway.tenancy.tenant import current_tenant

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
