"""Language models: whole, split into prefill and decode, and as embedders."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict

from omnibus.task.base import CompositeTask, UnitTask
from omnibus.task.item_codec import Part
from omnibus.task.types import OnDemand, Stream, TaskInput, TaskOutput, Tensor


class TextChunk(Part):
    """Some tokens of an answer. The last chunk has ``finish_reason`` and ``usage`` (token counts)."""

    text: str = ""
    ids: list[int] = []
    finish_reason: str = ""
    usage: dict[str, int] = {}

    @classmethod
    def join(cls, parts: Sequence["TextChunk"]) -> str:
        return "".join(part.text for part in parts)


class ThinkInput(TaskInput):
    #: List of chat messages, or a handle of their JSON when they are long.
    messages: Any
    #: Embeddings, in the order in which the messages mention them.
    items: list[Tensor] = []
    #: ``max_tokens``, ``temperature``, ``top_p``, ``top_k``, ``repetition_penalty``, ``stop``, ``ignore_eos``, and
    #: ``say``, an answer that is given; a dict, or its JSON as ``msgspec.Raw``.
    params: Any = {}
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
    start: OnDemand[dict[str, Any]]
    #: For a talker, as those of ``ThinkOutput``.
    prompt: OnDemand[Tensor]
    layout: OnDemand[Tensor]


class Prefill(UnitTask[ThinkInput, PrefillOutput]):
    """The prompt's forward pass: messages and embeddings to a KV cache."""

    kind: ClassVar[str] = "prefill"
    service: ClassVar[str] = "llm"


class DecodeInput(TaskInput):
    cache: Tensor
    start: dict[str, Any]
    params: Any = {}


class DecodeOutput(TaskOutput):
    text: Stream[TextChunk]
    rows: OnDemand[Stream[Tensor]]


class Decode(UnitTask[DecodeInput, DecodeOutput]):
    """Tokens from a KV cache that a prefill made."""

    kind: ClassVar[str] = "decode"
    service: ClassVar[str] = "llm"


class Thought(NamedTuple):
    """Results of a language model, whole or in two halves: ``text``, and what a talker reads."""

    text: Any
    prompt: Any
    layout: Any
    rows: Any


class TextOutput(BaseModel):
    """``text`` is a stream of ``TextChunk``."""

    text: Any


class PrefillDecode(CompositeTask):
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
    #: A list of texts, or a handle of its JSON when they are long.
    text: Any
    #: ``mean`` of all tokens of a text, or the ``last`` one.
    pooling: str = "mean"


class EmbedOutput(TaskOutput):
    #: [texts, width] float32, each of length 1.
    embedding: Tensor
    #: Of all texts.
    tokens: OnDemand[int]


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

    embedding: Any
    tokens: Any


class TextEmbedding(CompositeTask):
    """Texts to vectors."""

    embedder: Embed

    def invoke(self, request: TextInput) -> Vectors:
        made = self.embedder.invoke(EmbedInput(text=request.text, pooling=request.pooling), work=request.work)
        return Vectors(embedding=made.embedding, tokens=made.tokens)
