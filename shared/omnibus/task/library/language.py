"""Language models: whole, split into prefill and decode, and as embedders."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec
from pydantic import BaseModel, ConfigDict, SkipValidation
from typing_extensions import TypedDict

from omnibus.task.base import CompositeTask, UnitTask
from omnibus.task.item_codec import Part
from omnibus.task.types import OnDemand, Stream, TaskInput, TaskOutput, Tensor, Tensors, Value


class TextChunk(Part):
    """Some tokens of an answer. The last chunk has ``finish_reason`` and ``usage`` (token counts)."""

    text: str = ""
    ids: list[int] = []
    finish_reason: str = ""
    usage: dict[str, int] = {}

    @classmethod
    def join(cls, parts: Sequence["TextChunk"]) -> str:
        return "".join(part.text for part in parts)


class TextParams(TypedDict, total=False):
    """Sampling parameters of a language model; what is missing has the engine's default.

    ``max_tokens`` bounds the answer, in tokens. ``temperature`` is 0 (greedy) to 2, ``top_p`` a share above 0 up to 1,
    ``top_k`` a number of tokens (0: all), ``repetition_penalty`` a factor from 0.01 to 10. ``stop`` are up to 16 texts
    that end the answer. ``seed`` None is the invocation's. ``ignore_eos`` goes on until ``max_tokens``. ``say`` is an
    answer that is given, word for word.
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


#: Chat messages as OpenAI's API has them, or the handle of their JSON when they are long. The engine checks them.
Messages = Annotated[Sequence[Mapping[str, Any]] | Mapping[str, Any], SkipValidation]
#: Parameters, or their JSON encoded before. The engine checks them.
Params = Annotated[TextParams | msgspec.Raw, SkipValidation]


class ThinkInput(TaskInput):
    """Call of a language model.

    ``messages`` as OpenAI's API has them; ``items`` are the embeddings of their media, each [tokens, width], in the
    order in which they mention them. ``params``: see ``TextParams``. ``voice`` is the name of the voice that speaks
    the answer, for models with a talker.
    """

    messages: Messages
    items: Tensors = Tensors()
    params: Params = {}
    voice: str | None = None


class ThinkOutput(TaskOutput):
    text: Stream[TextChunk]
    #: For a talker: prompt [T + 3, width], position ids [axes, T], hidden rows [tokens, width] as they come.
    prompt: OnDemand[Tensor]
    layout: OnDemand[Tensor]
    rows: OnDemand[Stream[Tensor]]


class Think(UnitTask[ThinkInput, ThinkOutput]):
    """The LLM: chat messages and embeddings to text, and to hidden rows for a talker."""

    kind: ClassVar[str] = "think"
    service: ClassVar[str] = "llm"

    def think(self, request: ThinkInput, work: int = 1, answer: int = 1) -> "Thought":
        """Call the LLM; ``work`` and ``answer`` are as in ``PrefillDecode.think``."""
        made = self.invoke(request, work=work + answer)
        return Thought(made.text, made.prompt, made.layout, made.rows)


class PrefillOutput(TaskOutput):
    #: Keys and values of all layers, [layers, 2, kv_heads, tokens, head_dim].
    cache: OnDemand[Tensor]
    #: ``length``, ``rope_delta``, ``first_token`` and the prompt's token counts.
    start: OnDemand[Value[dict[str, Any]]]
    #: For a talker, as those of ``ThinkOutput``.
    prompt: OnDemand[Tensor]
    layout: OnDemand[Tensor]


class Prefill(UnitTask[ThinkInput, PrefillOutput]):
    """The prompt's forward pass: messages and embeddings to a KV cache."""

    kind: ClassVar[str] = "prefill"
    service: ClassVar[str] = "llm"


class DecodeInput(TaskInput):
    cache: Tensor
    start: Value[dict[str, Any]]
    params: Params = {}


class DecodeOutput(TaskOutput):
    text: Stream[TextChunk]
    rows: OnDemand[Stream[Tensor]]


class Decode(UnitTask[DecodeInput, DecodeOutput]):
    """Tokens from a KV cache that a prefill made."""

    kind: ClassVar[str] = "decode"
    service: ClassVar[str] = "llm"


class Thought(NamedTuple):
    """Results of a language model, whole or in two halves: ``text``, and what a talker reads."""

    text: Stream[TextChunk]
    prompt: Tensor
    layout: Tensor
    rows: Stream[Tensor]


class TextOutput(BaseModel):
    """``text`` is a stream of ``TextChunk``."""

    text: SkipValidation[Stream[TextChunk]]


class PrefillDecode(CompositeTask[ThinkInput, TextOutput]):
    """A language model in two halves, for executors that do only one of them, in the place of a ``Think``."""

    prefill: Prefill
    decode: Decode

    def invoke(self, request: ThinkInput) -> TextOutput:
        return TextOutput(text=self.think(request).text)

    def think(self, request: ThinkInput, work: int = 1, answer: int = 1) -> Thought:
        """``work`` and ``answer`` are how many tokens the prompt and the answer are expected to have."""
        begun = self.prefill.invoke(request, work=work)
        done = self.decode.invoke(DecodeInput(cache=begun.cache, start=begun.start, params=request.params), work=answer)
        return Thought(done.text, begun.prompt, begun.layout, done.rows)


class EmbedInput(TaskInput):
    """A list of texts, or a handle of its JSON when they are long.

    ``pooling`` is ``mean``, of all tokens of a text, or ``last``, the last one.
    """

    text: Any
    pooling: str = "mean"


class EmbedOutput(TaskOutput):
    #: [texts, width] float32, each of length 1.
    embedding: Tensor
    #: Of all texts.
    tokens: OnDemand[Value[int]]


class Embed(UnitTask[EmbedInput, EmbedOutput]):
    """Texts to vectors: a language model's last hidden states, pooled. A prefill that keeps no cache."""

    kind: ClassVar[str] = "embed"
    service: ClassVar[str] = "encoder"


class TextInput(BaseModel):
    """Texts to be embedded; ``work`` is how many tokens they are expected to have."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    text: Any
    pooling: str = "mean"
    work: int = 1


class Vectors(BaseModel):
    """``embedding`` [texts, width], and how many ``tokens`` the texts had."""

    embedding: SkipValidation[Tensor]
    tokens: SkipValidation[Value[int]]


class TextEmbedding(CompositeTask[TextInput, Vectors]):
    """Texts to vectors."""

    embedder: Embed

    def invoke(self, request: TextInput) -> Vectors:
        made = self.embedder.invoke(EmbedInput(text=request.text, pooling=request.pooling), work=request.work)
        return Vectors(embedding=made.embedding, tokens=made.tokens)
