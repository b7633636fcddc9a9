"""Requests and responses of ``/v1/completions``: the model continues a text, without a chat template.

Source: the types of the ``openai`` package, 3.52.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from omnibus.errors import BadRequest, TooLarge
from omnibus_gateway.openai.chat_request import (
    MAX_BIASES,
    MAX_TOP_LOGPROBS,
    NO_TOKEN_LIMIT,
    Bias,
    ChatRequest,
    Penalty,
    Presence,
    Share,
    StreamOptions,
    Temperature,
    TokenLimit,
    TopK,
    UserMessage,
)
from omnibus_gateway.openai.chat_response import FinishReason, TokenLogprob, Usage, build_usage
from omnibus_gateway.openai.options import VllmParams, check_vllm_params
from omnibus_gateway.openai.parse import decode_body, token_limit_error

PATH = "/v1/completions"

#: Default limit of tokens of a completion, as in OpenAI's API.
DEFAULT_TOKENS = 16
#: Limit of the completions of one request: its prompts times ``n``.
MAX_CHOICES = 128

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
BiasedToken = Annotated[str, Meta(pattern=r"^[0-9]{1,10}$")]


class CompletionRequest(VllmParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request with one or several prompts.

    Each prompt is a text or a list of token ids. None means that the client did not set the field.
    """

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    prompt: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1, max_length=1 << 17)]
    max_tokens: TokenLimit | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    #: Puts the prompt before its completion; only for prompts that are texts.
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=4)] | None = None

    # Extras that other open servers also accept.
    top_k: TopK | None = None
    repetition_penalty: Penalty | None = None
    ignore_eos: bool | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None

    #: Returns the probabilities of the tokens, and this many of the most likely tokens at each position.
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    logit_bias: Annotated[dict[BiasedToken, Bias], Meta(max_length=MAX_BIASES)] | None = None
    frequency_penalty: Presence | None = None
    presence_penalty: Presence | None = None

    #: Text after the gap to fill in, for models that can; only for prompts that are texts.
    suffix: str | None = None

    # Accepted only with values that change nothing.
    best_of: int | None = None

    # Accepted and ignored.
    user: str | None = None

    @property
    def token_limit(self) -> int | None:
        """Limit of generated tokens; None for the rest of the context."""
        limit = DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens
        return None if limit == NO_TOKEN_LIMIT else limit

    @property
    def choices_per_prompt(self) -> int:
        return self.n or 1

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts, each a text or token ids. Raises ``BadRequest`` for a list that mixes them."""
        raw_prompt = self.prompt
        if isinstance(raw_prompt, str):
            return [raw_prompt]
        if all(isinstance(each, int) for each in raw_prompt):
            return [raw_prompt]  # type: ignore[list-item]
        if all(isinstance(each, str) for each in raw_prompt) or all(isinstance(each, list) for each in raw_prompt):
            return raw_prompt  # type: ignore[return-value]
        raise BadRequest("prompt must be a text, a list of texts, of token ids, or of lists of these", param="prompt")

    def plain_prompt(self, prompt: str | list[int]) -> dict[str, Any]:
        """Return the message of ``prompt``."""
        gap = {"suffix": self.suffix} if self.suffix else {}
        return {"role": "prompt", "content": prompt, **gap}

    def to_chat(self) -> ChatRequest:
        """Return a chat request with these settings and a placeholder message."""
        return ChatRequest(
            model=self.model,
            messages=[UserMessage(content="")],
            max_tokens=self.token_limit,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            repetition_penalty=self.repetition_penalty,
            ignore_eos=self.ignore_eos,
            stop=self.stop,
            min_p=self.min_p,
            logprobs=None if self.logprobs is None else True,
            top_logprobs=self.logprobs,
            logit_bias=self.logit_bias,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            **self.vllm_params(),
        )


class PromptChoice(NamedTuple):
    """One completion to generate: its index, its prompt, its seed, and whether the prompt's tokens count."""

    place: int
    prompt: str | list[int]
    seed: int | None
    counts_prompt: bool


class CompletionLogprobs(Struct, frozen=True):
    """Parallel lists with one entry per token.

    They are its text, the logarithm of its probability, the most likely tokens at its position, and its offset in the
    completion, in characters.
    """

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Struct, frozen=True):
    text: str
    index: int
    finish_reason: FinishReason | None
    logprobs: CompletionLogprobs | None = None


class Completion(Struct, frozen=True):
    """A complete response, or one event of a stream. Only the last event of a stream may have ``usage``."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: Literal["text_completion"] = "text_completion"
    system_fingerprint: str | None = None
    usage: Usage | UnsetType | None = UNSET


_DECODER = msgspec.json.Decoder(CompletionRequest)
_encode = msgspec.json.Encoder().encode


def parse_completion_request(body: bytes) -> CompletionRequest:
    """Decode and check a request. Raises ``BadRequest`` with ``param``, and ``TooLarge``."""
    request = decode_body(_DECODER, body)
    if request.max_tokens == 0:
        raise token_limit_error()
    if request.logprobs is not None and request.echo:
        raise BadRequest("Prompts have no logprobs: omit echo or logprobs.", param="logprobs")
    if request.best_of is not None and request.best_of != request.choices_per_prompt:
        raise BadRequest("best_of must equal n: all generated completions are returned.", param="best_of")
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options is only allowed when stream is true.", param="stream_options")
    check_vllm_params(request)
    _check_prompts(request)
    return request


def _check_prompts(request: CompletionRequest) -> None:
    prompts = request.prompts()
    if len(prompts) * request.choices_per_prompt > MAX_CHOICES:
        raise TooLarge(f"A request must have at most {MAX_CHOICES} completions: its prompts times n.", param="prompt")
    if any(not prompt for prompt in prompts):
        raise BadRequest("A prompt is empty: send a text or token ids.", param="prompt")
    if request.suffix and not all(isinstance(prompt, str) for prompt in prompts):
        raise BadRequest("suffix must not be used with token ids: send the prompts as texts.", param="suffix")
    if request.echo and not all(isinstance(prompt, str) for prompt in prompts):
        raise BadRequest("echo must not be used with token ids: send the prompts as texts.", param="echo")


def prompt_choices(request: CompletionRequest) -> Iterator[PromptChoice]:
    """Yield the completions of a request in order: all of the first prompt, then those of the next.

    Each has its own seed, so that the completions of one prompt differ.
    """
    index = 0
    for prompt in request.prompts():
        for number in range(request.choices_per_prompt):
            seed = None if request.seed is None else (request.seed + number) & (2**63 - 1)
            yield PromptChoice(index, prompt, seed, number == 0)
            index += 1


def completion_logprobs(tokens: Sequence[TokenLogprob], offset: int) -> CompletionLogprobs:
    """Build the probabilities of ``tokens``. The first begins at ``offset`` characters of the completion."""
    offsets = []
    for each in tokens:
        offsets.append(offset)
        offset += len(each.token)
    return CompletionLogprobs(
        [each.token for each in tokens],
        [each.logprob for each in tokens],
        [{top.token: top.logprob for top in each.top_logprobs} for each in tokens],
        offsets,
    )


def add_usages(usages: Iterable[tuple[PromptChoice, Usage]]) -> Usage:
    """Add the tokens of all completions. A prompt counts once, even if it has several completions."""
    prompt = text = 0
    for choice, usage in usages:
        prompt += usage.prompt_tokens if choice.counts_prompt else 0
        text += usage.completion_tokens
    return build_usage(prompt_text=prompt, text=text)


def encode_completion(answer: Completion) -> bytes:
    """Encode a complete response as JSON."""
    return _encode(answer)


def encode_completion_event(answer: Completion) -> bytes:
    """Encode one server-sent event."""
    return b"data: %b\n\n" % _encode(answer)
