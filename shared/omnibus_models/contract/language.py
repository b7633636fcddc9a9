"""Language models: prompts with media in them, a decoder stack, what reads requests for one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from omnibus_models.adapters import Adapters
from omnibus_models.attention import Attention
from omnibus_models.contract.base import Encoded, ModelComponent
from omnibus_models.tool_calls import ToolFormat


@dataclass(frozen=True)
class PromptOptions:
    """Options of a chat template besides the messages: ``tools`` as it takes them, and other variables of it."""

    tools: Sequence[Mapping[str, Any]] = ()
    template: Mapping[str, Any] = field(default_factory=dict)


#: Of a chat without tools.
PLAIN_PROMPT = PromptOptions()


@dataclass(frozen=True)
class TokenizedPrompt:
    """A tokenised chat: ``ids`` holds one placeholder per media item, still to be expanded."""

    ids: tuple[int, ...]
    modalities: tuple[str, ...]  # of the media, in the order in which the messages name them
    #: Whether the answer goes on with reasoning that the template has begun; None: it is no answer of a chat.
    thinking: bool | None = False


class MediaRun(NamedTuple):
    """Rows of one media item that follow one another in a prompt: ``rows`` of the item, from ``start`` on."""

    item: int
    rows: slice
    start: int


@dataclass(frozen=True)
class PromptLayout:
    """A prompt as its model counts it."""

    ids: Sequence[int]  # as many placeholders as each item has rows
    starts: Sequence[int]  # where the rows of each item begin
    positions: Tensor  # as in Prefill, on the CPU
    delta: int  # as in Prefill
    media: Tensor  # as in Prefill, on the CPU; between the rows of one item there may be text

    def media_runs(self, media: Sequence[Encoded]) -> Iterator[MediaRun]:
        """Yield the places of the rows of ``media``; an item with text between its rows has several runs."""
        for index, (item, start) in enumerate(zip(media, self.starts, strict=True)):
            places = self.media[start:].nonzero()[: item.embeds.shape[0], 0] + start
            ends = (places.diff() != 1).nonzero()[:, 0] + 1
            for first, end in pairwise([0, *ends.tolist(), len(places)] if len(places) else ()):
                yield MediaRun(index, slice(first, end), int(places[first]))


@dataclass(frozen=True)
class PrefillInputs:
    """Inputs of the first forward pass of a request."""

    inputs: Tensor  # [T, H] embeddings; with media as wide as their rows, zeros behind text
    positions: Tensor  # [axes, T] int64 rotary positions; axes is 3 for M-RoPE families, else 1
    delta: int  # position of decoded token n is n + delta, n counted from 0 over the whole sequence
    media: Tensor  # [T] bool: rows that came from an encoder
    attention: Attention | None = None  # None: each position looks at all before it
    spoken: Tensor | None = None  # int32 [k, S]: what a talker has to know of its rows' places; None: positions

    @property
    def layout(self) -> Tensor:
        """Int32 [k, S]: where the rows of the prompt are, as ``Talker.start`` takes it."""
        return (self.positions if self.spoken is None else self.spoken).to(torch.int32)


class Decoder(ModelComponent, Protocol):
    """An autoregressive transformer that runs without per-module state."""

    layers: int
    axes: int  # rotary position axes, see Prefill.positions
    context: int  # longest sequence, prompt included
    vocabulary: int
    eos: frozenset[int]
    device: torch.device
    dtype: torch.dtype

    def embed(self, ids: Tensor) -> Tensor:
        """Token embeddings: [...] int64 to [..., H]."""

    def forward(self, inputs: Tensor, positions: Tensor, cache: Any, mask: Any) -> Tensor:
        """Run the backbone: ``inputs`` [B, T, H] or wider, ``positions`` [axes, B, T] to hidden [B, T, H'].

        ``cache`` is a ``transformers`` Cache (DynamicCache in prefill, the slot cache in decode) that has all
        positions in each layer; ``mask`` is None (plain causal) or bool [B, 1, T, S], True where attention is
        allowed. Layers with a window narrow it down. A ``CrossDecoder`` takes a ``Crossing`` as well.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """[B, H'] to float32 [B, V], ids that may never be sampled at -inf."""


class CrossDecoder(Decoder, Protocol):
    """A decoder of which some layers look aside, at rows of an encoder, and not at the sequence.

    A sequence without such rows passes by these layers.
    """

    crossed: Sequence[int]


class Reader(Protocol):
    """Work of a thinker before and after its layers, for engines that run the layers themselves."""

    speaks: bool  # whether a talker can follow
    width: int  # of embeddings and of hidden rows
    context: int  # longest sequence, prompt included
    vocabulary: int
    eos: frozenset[int]
    device: torch.device
    dtype: torch.dtype
    thinks: bool  # whether answers may begin with reasoning
    tool_format: ToolFormat
    tokenizer: Any  # a fast one of ``transformers``

    def embed(self, ids: Tensor) -> Tensor:
        """Token embeddings: [...] int64 to [..., H]."""

    def special_id(self, text: str) -> int | None:
        """The number of the special token ``text``; None where it is none, and read as any other text."""

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], context: int = 0, options: PromptOptions = PLAIN_PROMPT
    ) -> TokenizedPrompt:
        """Apply the chat template and tokenise.

        ``messages``: ``{"role", "content"}`` with content a string or a list of
        ``{"type": "text", "text"}`` and ``{"type": "image"|"video"|"audio"}`` parts; an assistant's may have
        ``tool_calls``, whose arguments are objects, and ``reasoning_content``; those of role ``tool`` have the
        ``name`` of the function. Tools that the template does not know are written into messages. Or one message of
        role ``prompt``, whose content, a text or token ids, takes no template. Raises
        ``BadRequest`` when user text holds one of the model's control or placeholder tokens, an
        unknown role or an empty list, and ``ContextTooLong`` before it tokenises more than ``context`` tokens, of
        which 0 is the model's own.
        """

    def encode_text(self, text: str, marked: bool = False, context: int = 0) -> Sequence[int]:
        """The ids of ``text`` as it stands, without a template. Raises as ``prompt`` does.

        ``marked``: with what the tokeniser itself puts before and behind a text.
        """

    def layout(self, prompt: TokenizedPrompt, media: Sequence[Encoded]) -> PromptLayout:
        """Expand placeholders and count positions.

        Raises ``ContextTooLong``, and ``BadRequest`` for items that are not those of the prompt, or whose
        embedding has not the shape that their meta data says.
        """

    def assemble_prefill(self, prompt: TokenizedPrompt, media: Sequence[Encoded]) -> PrefillInputs:
        """Expand placeholders and merge embeddings. Raises as ``layout`` does."""

    def decode_ids(self, ids: Sequence[int]) -> str:
        """Decode ids, control tokens left out."""

    def talker_prompt(self, prefill: PrefillInputs, hidden: Tensor, voice: str) -> Tensor:
        """Rows for the talker after prefill: [S + 3, H]; the last three are begin, end and pad of speech.

        ``hidden`` [T, H'] is the prefill's output; S is T, or what ``prefill.spoken`` says. The begin row may depend
        on the voice; an unknown voice raises ``BadRequest`` naming the known ones.
        """

    def talker_row(self, inputs: Tensor, hidden: Tensor) -> Tensor:
        """Rows for decoded tokens: ``inputs`` [B, H] and ``hidden`` [B, H'] of one decode step to [B, H]."""


class Thinker(Reader, Decoder, Protocol):
    """The LLM of a model: text in and out, media embeddings in, hidden rows out for a talker."""

    adapters: Adapters | None  # those that were attached, see ``omnibus_models.adapters``


#: What a talker says in one step: a code, or a frame of several.
