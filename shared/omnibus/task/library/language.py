"""Language models: whole, split into prefill and decode, and as embedders."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, cast

import msgspec
from pydantic import BaseModel, ConfigDict, SkipValidation
from typing_extensions import TypedDict

from omnibus.errors import BadRequest
from omnibus.task.base import CompositeTask, UnitTask
from omnibus.task.result import Part
from omnibus.task.types import OnDemand, Stream, TaskInput, TaskOutput, Tensor, Tensors, Value


class TextChunk(Part):
    """Some tokens of an answer. ``await`` of a stream returns the whole text."""

    #: Characters that these tokens complete.
    text: str = ""
    #: Token ids, for models that report them.
    ids: list[int] = []
    #: With ``report_prompt``: entries of the vocabulary with these ids.
    tokens: list[str] = []
    #: More of what the model thinks before it answers.
    reasoning: str = ""
    #: More of the calls of tools, as ``omnibus.structured.calls`` has them.
    calls: str = ""
    #: Probabilities of tokens: ``at``, the number of the first one in the answer, and ``tokens``.
    logprobs: dict[str, Any] = {}
    #: In the last chunk: ``stop`` or ``length``; else empty.
    finish_reason: str = ""
    #: In the last chunk: numbers of tokens by kind, ``prompt_tokens`` and ``completion_tokens`` among them.
    usage: dict[str, int] = {}

    @classmethod
    def join(cls, parts: Sequence["TextChunk"]) -> str:
        return "".join(part.text for part in parts)


class TextParams(TypedDict, total=False):
    """Sampling parameters of a language model.

    Missing parameters are those of the checkpoint's ``generation_config.json``. Without a ``temperature`` there, it is
    ``fallback_temperature``, or 0. ``usual_tokens`` limits an answer without ``max_tokens``, as far as it fits.

    ``max_tokens`` limits the answer, in tokens. ``temperature`` is 0 (greedy) to 2, and ``top_p`` above 0 up to 1.
    ``top_k`` is a number of tokens (0: all), and ``repetition_penalty`` a factor from 0.01 to 10. ``stop`` are up to 16
    texts that end the answer. ``seed`` None is the invocation's. ``ignore_eos`` continues until ``max_tokens``. ``say``
    is a fixed answer, word for word. With ``count_only``, there is no text, only the ``usage`` with the prompt's
    tokens. With ``report_prompt`` as well, the text, ids and tokens are those of the prompt.

    ``min_p`` is a share of the best token's probability. ``presence_penalty`` and ``frequency_penalty`` are -2 to 2.
    ``logit_bias`` is -100 to 100 by the decimal id of a token, and ``logprobs`` a number of alternatives up to 20.

    ``tools`` are as in OpenAI's API. ``tool_choice`` ``required`` makes the answer calls of them, and ``allowed_tools``
    limits the tools. ``structured_outputs`` is ``{"json": schema}`` or ``{"json_object": true}``. ``template`` are
    variables of the chat template. ``adapter`` is the name of a LoRA adapter that is declared with the model.
    ``adapter_source`` is the place of one that was loaded while the system serves: ``path`` and ``sha256``.

    ``cache_key`` is equal for the turns of a conversation: engines cache their computation of it. A cached prompt is
    used only for calls with the same ``cache_salt``. With ``prefill_only``, there is no answer: the prompt is computed
    and cached for its conversation. With ``drop_history``, the oldest messages are left out of a prompt that is too
    long.
    """

    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    stop: Sequence[str]
    seed: int | None
    ignore_eos: bool
    say: str | None
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[str, float]
    logprobs: int | None
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str
    parallel_tool_calls: bool
    allowed_tools: Sequence[str]
    structured_outputs: Mapping[str, Any] | None
    template: Mapping[str, Any]
    count_only: bool
    report_prompt: bool
    adapter: str
    adapter_source: Mapping[str, str]
    cache_key: str
    cache_salt: str
    prefill_only: bool
    drop_history: bool
    fallback_temperature: float
    usual_tokens: int


#: Chat messages as OpenAI's API has them, or the handle of their JSON when they are long. The engine checks them.
Messages = Annotated[Sequence[Mapping[str, Any]] | Mapping[str, Any], SkipValidation]
#: Parameters, or their JSON encoded before. The engine checks them.
Params = Annotated[TextParams | msgspec.Raw, SkipValidation]


class ThinkInput(TaskInput):
    """Call of a language model.

    ``messages`` are as in OpenAI's API. ``items`` are the embeddings of their media, each [tokens, width], in the order
    of the messages. ``params``: see ``TextParams``. ``voice`` is the name of the voice that speaks the answer, for
    models with a talker.
    """

    #: List of chat messages, or a handle of their JSON when they are long.
    messages: Messages
    #: Embeddings [tokens, width] float32 each, in the order in which the messages mention them.
    items: Tensors = Tensors()
    #: ``max_tokens``, ``temperature`` (0: greedy), ``top_p``, ``top_k``, ``repetition_penalty``, ``stop``, ``seed``,
    #: ``ignore_eos``, and ``say``, an answer that is given; a dict, or its JSON as ``msgspec.Raw``.
    params: Params = {}
    #: Voice of the talker; None for text alone.
    voice: str | None = None


class ThinkOutput(TaskOutput):
    #: The answer.
    text: Stream[TextChunk]
    #: For a talker: the prompt's rows [T + 3, width] float32, with those that begin and end a text.
    prompt: OnDemand[Tensor]
    #: For a talker: position ids of the prompt, [axes, T] int64.
    layout: OnDemand[Tensor]
    #: For a talker: hidden rows [tokens, width] float32, as they are made.
    rows: OnDemand[Stream[Tensor]]


class Think(UnitTask[ThinkInput, ThinkOutput]):
    """The LLM: chat messages and embeddings to text, and to hidden rows for a talker.

    Raises ``BadRequest`` for invalid messages, items or params, ``ContextTooLong`` for a prompt without room for an
    answer.
    """

    kind: ClassVar[str] = "think"
    service: ClassVar[str] = "llm"

    def think(self, request: ThinkInput, work: int = 1, answer: int = 1) -> "Thought":
        """Call the LLM; ``work`` and ``answer`` are as in ``PrefillDecode.think``."""
        thought = self.invoke(request, work=work + answer)
        return Thought(thought.text, thought.prompt, thought.layout, thought.rows)


class PrefillOutput(TaskOutput):
    #: Keys and values of all layers, [layers, 2, kv_heads, tokens, head_dim] in the model's dtype (bfloat16 as int16);
    #: flat where some layers look at media alone; uint8 [layers, blocks, bytes] under vLLM.
    cache: OnDemand[Tensor]
    #: ``length``, ``rope_delta``, ``first_token`` and the prompt's token counts.
    start: OnDemand[Value[dict[str, Any]]]
    #: As those of ``ThinkOutput``, for a talker.
    prompt: OnDemand[Tensor]
    layout: OnDemand[Tensor]


class Prefill(UnitTask[ThinkInput, PrefillOutput]):
    """The prompt's forward pass: messages and embeddings to a KV cache. Raises as ``Think``."""

    kind: ClassVar[str] = "prefill"
    service: ClassVar[str] = "llm"


class DecodeInput(TaskInput):
    #: As ``PrefillOutput.cache``, of the same model and engine.
    cache: Tensor
    #: As ``PrefillOutput.start``.
    start: Value[dict[str, Any]]
    #: As ``ThinkInput.params``, the same as for the prefill.
    params: Params = {}


class DecodeOutput(TaskOutput):
    #: The answer, its first token included.
    text: Stream[TextChunk]
    #: As ``ThinkOutput.rows``.
    rows: OnDemand[Stream[Tensor]]


class Decode(UnitTask[DecodeInput, DecodeOutput]):
    """Tokens from a prefill's KV cache.

    Raises ``ProtocolError`` for a cache of another model or engine, ``StageUnavailable`` if the prefill is gone.
    """

    kind: ClassVar[str] = "decode"
    service: ClassVar[str] = "llm"


class Thought(NamedTuple):
    """Results of a language model, whole or in two halves: ``text``, and inputs of a talker."""

    text: Stream[TextChunk]
    prompt: Tensor
    layout: Tensor
    rows: Stream[Tensor]


class TextOutput(BaseModel):
    """Answer of a language model."""

    #: Stream of ``TextChunk``.
    text: SkipValidation[Stream[TextChunk]]


class PrefillDecode(CompositeTask[ThinkInput, TextOutput]):
    """A language model in two halves, in place of a ``Think``.

    For executors that run only one of them.
    """

    #: Reads the prompt.
    prefill: Prefill
    #: Writes the answer.
    decode: Decode

    def invoke(self, request: ThinkInput) -> TextOutput:
        return TextOutput(text=self.think(request).text)

    def think(self, request: ThinkInput, work: int = 1, answer: int = 1) -> Thought:
        """Call both halves; ``work`` and ``answer`` are the expected tokens of prompt and answer."""
        prefill_output = self.prefill.invoke(request, work=work)
        decode_output = self.decode.invoke(
            DecodeInput(cache=prefill_output.cache, start=prefill_output.start, params=request.params), work=answer
        )
        return Thought(decode_output.text, prefill_output.prompt, prefill_output.layout, decode_output.rows)


#: Texts, or token ids of each, or the handle of their JSON when they are long. The engine checks them.
Texts = Annotated[Sequence[str] | Sequence[Sequence[int]] | Value[list[str]] | Mapping[str, Any], SkipValidation]


class EmbedInput(TaskInput):
    """Texts, or a handle of their JSON if they are long.

    ``pooling`` is ``mean``, of all tokens of a text, or ``last``, the last one.
    """

    #: A list of texts, or a handle of its JSON when they are long.
    text: Texts
    #: Of a language model: ``mean`` of all tokens of a text, the default, or the ``last`` one. A sentence encoder has
    #: its own pooling.
    pooling: str | None = None
    #: Name of a prompt of a sentence encoder, put before each text. None: its default prompt.
    prompt_name: str | None = None


class EmbedOutput(TaskOutput):
    #: [texts, width] float32, each of length 1 unless a sentence encoder does not normalise.
    embedding: Tensor
    #: Tokens of all texts together.
    tokens: OnDemand[Value[int]]


class Embed(UnitTask[EmbedInput, EmbedOutput]):
    """Texts to vectors: the last hidden states of a language model or sentence encoder, pooled.

    Raises ``BadRequest`` for texts without tokens, ``ContextTooLong`` for a text longer than the model's context.
    """

    kind: ClassVar[str] = "embed"
    service: ClassVar[str] = "encoder"


class TextInput(BaseModel):
    """Texts to embed."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    #: As ``EmbedInput.text``.
    text: Texts
    #: As ``EmbedInput.pooling``.
    pooling: str | None = None
    #: As ``EmbedInput.prompt_name``.
    prompt_name: str | None = None
    #: Expected tokens of the texts, for load estimates.
    work: int = 1

    @property
    def strings(self) -> list[str]:
        """The texts of an app's client. Raises ``BadRequest`` for tokens, and for texts of another task."""
        if not isinstance(self.text, list) or not all(isinstance(text, str) for text in self.text):
            raise BadRequest("the texts are not strings", param="input")
        return cast(list[str], self.text)


class Vectors(BaseModel):
    """Embedded texts."""

    #: Tensor [texts, width] float32, as ``EmbedOutput.embedding``.
    embedding: SkipValidation[Tensor]
    #: Tokens of all texts together.
    tokens: SkipValidation[Value[int]]


class TextEmbedding(CompositeTask[TextInput, Vectors]):
    """Texts to vectors."""

    #: The language model that embeds.
    embedder: Embed

    def invoke(self, request: TextInput) -> Vectors:
        texts = EmbedInput(text=request.text, pooling=request.pooling, prompt_name=request.prompt_name)
        result = self.embedder.invoke(texts, work=request.work)
        return Vectors(embedding=result.embedding, tokens=result.tokens)
