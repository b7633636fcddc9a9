"""The ``params`` input of both runners, checked."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from omnibus.checkpoints.adapters import AdapterSource
from omnibus.errors import BadRequest, ContextTooLong, NotFound
from omnibus_models.contract import PLAIN_PROMPT, PromptOptions, TokenizedPrompt, TokenSamplingParams

P = TypeVar("P")
Temperature = Annotated[float, msgspec.Meta(ge=0.0, le=2.0)]
Share = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
Penalty = Annotated[float, msgspec.Meta(ge=0.01, le=10.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Stop = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Presence = Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)]
Token = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,10}$")]
#: Most contexts that a prompt may have before its truncation.
MAX_TRUNCATED_CONTEXTS = 8
#: Parameters that a checkpoint may recommend.
_RECOMMENDED = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
Bias = Annotated[float, msgspec.Meta(ge=-100.0, le=100.0)]


class TextGenerationParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of text generation.

    ``max_tokens`` None means the rest of the context, ``seed`` None the invocation's. With ``say`` nothing is
    generated: it is the answer, word for word, and the model only processes its tokens. ``tools`` have the format of
    chat templates. With ``tool_choice`` ``required`` the answer is calls of them, or of the ``allowed_tools``.
    ``structured_outputs`` is ``{"json": schema}`` or ``{"json_object": true}``. ``template`` are variables of the chat
    template. With ``count_only`` nothing is computed: the prompt's tokens are counted, and with ``report_prompt`` also
    returned.

    ``logprobs`` is the number of alternatives to report for each token, None for no report. ``adapter`` is the name of
    the LoRA adapter; empty means the base model. With an ``adapter_source`` it is loaded from there. ``cache_key`` is
    equal for the turns of a conversation, whose prompts are kept for the next one. An engine reuses a kept prompt only
    for requests with the same ``cache_salt``. With ``prefill_only`` the prompt is computed and kept for its
    conversation, and no answer is made. If a ``voice`` is named, the rows for a talker are kept as well.

    Missing values are those of the checkpoint's ``generation_config.json``. A ``temperature`` missing there too is the
    ``fallback_temperature``. ``usual_tokens`` bound an answer without ``max_tokens``, as the context does.

    The fields from ``min_tokens`` are vLLM's. ``truncate_prompt_tokens`` keeps so many of a prompt's last tokens. With
    -1 it keeps as many as leave room for an answer. With ``drop_history`` the oldest messages are left out instead.
    """

    max_tokens: Count | None = None
    temperature: Temperature = 0.0
    top_p: Share = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=0)] = 0
    repetition_penalty: Penalty = 1.0
    stop: Annotated[tuple[Stop, ...], msgspec.Meta(max_length=16)] = ()
    seed: int | None = None
    ignore_eos: bool = False
    say: Annotated[str, msgspec.Meta(min_length=1, max_length=65536)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0
    presence_penalty: Presence = 0.0
    frequency_penalty: Presence = 0.0
    logit_bias: Annotated[dict[TokenId, Bias], msgspec.Meta(max_length=1024)] = {}
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: Literal["auto", "required"] = "auto"
    parallel_tool_calls: bool = True
    allowed_tools: tuple[str, ...] = ()
    structured_outputs: dict[str, Any] | None = None
    template: dict[str, Any] = {}
    count_only: bool = False
    report_prompt: bool = False
    adapter: Annotated[str, msgspec.Meta(max_length=256)] = ""
    adapter_source: AdapterSource | None = None
    cache_key: Annotated[str, msgspec.Meta(max_length=64)] = ""
    cache_salt: Annotated[str, msgspec.Meta(max_length=256)] = ""
    prefill_only: bool = False
    fallback_temperature: Temperature | None = None
    usual_tokens: Count | None = None
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    stop_token_ids: Annotated[tuple[Token, ...], msgspec.Meta(max_length=1024)] = ()
    allowed_token_ids: tuple[Token, ...] = ()
    bad_words: Annotated[tuple[Stop, ...], msgspec.Meta(max_length=1024)] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    drop_history: bool = False

    @property
    def conversation_key(self) -> str:
        """The conversation, its salt and its adapter; empty without a ``cache_key``."""
        return f"{self.cache_salt}/{self.cache_key}/{self.adapter_key}" if self.cache_key else ""

    @property
    def changes_logits(self) -> bool:
        """True if logits are changed or reported, as few requests need."""
        return (
            bool(self.min_p or self.presence_penalty or self.frequency_penalty or self.logit_bias)
            or self.logprobs is not None
            or bool(self.min_tokens or self.allowed_token_ids or self.bad_words)
        )

    @property
    def adapter_key(self) -> str:
        """The adapter and its files: equal keys compute equal prompts."""
        return self.adapter if self.adapter_source is None else f"{self.adapter}@{self.adapter_source.sha256}"

    @property
    def prompt_key(self) -> str:
        """Parts of a prompt in addition to its messages and options."""
        cut = "drop" if self.drop_history else self.truncate_prompt_tokens
        return self.adapter_key if cut is None else f"{self.adapter_key} {cut} {self.max_tokens}"

    @property
    def prompt_options(self) -> PromptOptions:
        """Options of the chat template."""
        return PromptOptions(self.tools, self.template) if self.tools or self.template else PLAIN_PROMPT


class CodecGenerationParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of code generation. ``max_codes`` None means as many as the model allows."""

    max_codes: Count | None = None
    temperature: Temperature = 0.0
    top_p: Share = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=0)] = 0
    repetition_penalty: Penalty = 1.0
    seed: int | None = None


def read_params(params: Any, kind: type[P]) -> P:
    """Return ``params`` as ``kind``. Raises ``BadRequest`` that names the field."""
    try:
        return msgspec.convert({} if params is None else params, kind)
    except msgspec.ValidationError as error:
        field = re.search(r"`\$\.(\w+)|field `(\w+)`", str(error))
        name = next(filter(None, field.groups()), "params") if field else "params"
        raise BadRequest(f"{name} is invalid: {error}", param=name) from None


def unknown_adapter_error(name: str) -> NotFound:
    """Return the error for an adapter that is not loaded."""
    return NotFound(f"this executor has no adapter {name!r}: declare it with its model, or load it", param="model")


def complete_params(params: Any, sampling: Mapping[str, float]) -> Any:
    """Fill missing ``params`` of a request for text from the checkpoint's ``sampling``."""
    if not isinstance(params, dict):
        return params
    usual: dict[str, Any] = {name: value for name, value in sampling.items() if name in _RECOMMENDED}
    if "max_tokens" in sampling:
        usual["usual_tokens"] = sampling["max_tokens"]
    if (fallback := params.get("fallback_temperature")) is not None:
        usual.setdefault("temperature", fallback)
    return {**usual, **params}


def truncate_prompt(prompt: TokenizedPrompt, params: TextGenerationParams, context: int) -> TokenizedPrompt:
    """Return the last ``truncate_prompt_tokens`` of ``prompt``. Raises ``BadRequest`` for media in it, or if none is
    left.
    """
    kept_count = params.truncate_prompt_tokens
    if kept_count is None:
        return prompt
    most = context - (params.max_tokens or 1) if kept_count == -1 else kept_count
    if most <= 0:
        raise BadRequest(
            "truncate_prompt_tokens leaves no token of the prompt; raise it, or lower max_tokens",
            param="truncate_prompt_tokens",
        )
    if len(prompt.ids) <= most:
        return prompt
    if prompt.modalities:
        raise BadRequest(
            "a prompt with media cannot be truncated: remove truncate_prompt_tokens and send fewer messages",
            param="truncate_prompt_tokens",
        )
    return replace(prompt, ids=tuple(prompt.ids[-most:]))


def max_answer_tokens(context: int, length: int, requested_tokens: int | None, usual: int | None = None) -> int:
    """Return the most tokens of an answer to a prompt of ``length``.

    That is ``requested_tokens``, or else ``usual`` if so many fit. Raises ``ContextTooLong``, ``BadRequest``.
    """
    left = context - length
    if left <= 0:
        raise ContextTooLong(
            f"the prompt has {length} tokens and the model's context {context}; send a shorter prompt",
            param="messages",
        )
    if requested_tokens is not None and requested_tokens > left:
        raise BadRequest(
            f"max_tokens is {requested_tokens}, but after a prompt of {length} tokens the model's context of "
            f"{context} leaves {left}; send max_tokens of at most {left}",
            param="max_tokens",
        )
    return min(left, usual or left) if requested_tokens is None else requested_tokens


def build_sampling(
    params: TextGenerationParams | CodecGenerationParams,
    limit: int,
    seed: int,
    ends: frozenset[int] = frozenset(),
    banned_words: tuple[tuple[int, ...], ...] = (),
) -> TokenSamplingParams:
    """Return the settings of one request; ``seed`` is the invocation's, for requests without their own.

    ``ends`` are the tokens that end an answer, ``banned_words`` the tokens of ``bad_words``.
    """
    sampling = TokenSamplingParams(
        max_tokens=limit,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        repetition_penalty=params.repetition_penalty,
        seed=seed if params.seed is None else params.seed,
    )
    if isinstance(params, CodecGenerationParams) or not params.changes_logits:
        return sampling
    return replace(
        sampling,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias={int(token): bias for token, bias in params.logit_bias.items()},
        logprobs=params.logprobs,
        min_tokens=params.min_tokens,
        ends=ends,
        allowed=params.allowed_token_ids,
        bad_words=params.bad_words,
        banned=banned_words,
    )
