"""Language models: prompts with media, decoder stacks, and readers of requests."""

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
    """Options of a chat template: ``tools`` in its form, and its other variables."""

    tools: Sequence[Mapping[str, Any]] = ()
    template: Mapping[str, Any] = field(default_factory=dict)


#: Of a chat without tools.
PLAIN_PROMPT = PromptOptions()


@dataclass(frozen=True)
class TokenizedPrompt:
    """A tokenised chat: ``ids`` contains one placeholder per media item, not yet expanded."""

    ids: tuple[int, ...]
    modalities: tuple[str, ...]  # of the media, in the order of the messages
    #: Whether the answer continues reasoning that the template has begun; None if it does not answer a chat.
    thinking: bool | None = False


class MediaRun(NamedTuple):
    """Consecutive rows of one media item in a prompt: ``rows`` of the item, from ``start``."""

    item: int
    rows: slice
    start: int


@dataclass(frozen=True)
class PromptLayout:
    """A prompt with placeholders expanded, and its positions."""

    ids: Sequence[int]  # as many placeholders as each item has rows
    starts: Sequence[int]  # start of the rows of each item
    positions: Tensor  # as in PrefillInputs, on the CPU
    delta: int  # as in PrefillInputs
    media: Tensor  # as in PrefillInputs, on the CPU; between the rows of one item there may be text

    def media_runs(self, media: Sequence[Encoded]) -> Iterator[MediaRun]:
        """Yield the runs of the rows of ``media``; an item with text between its rows has several."""
        for index, (item, start) in enumerate(zip(media, self.starts, strict=True)):
            places = self.media[start:].nonzero()[: item.embeds.shape[0], 0] + start
            ends = (places.diff() != 1).nonzero()[:, 0] + 1
            for first, end in pairwise([0, *ends.tolist(), len(places)] if len(places) else ()):
                yield MediaRun(index, slice(first, end), int(places[first]))


@dataclass(frozen=True)
class PrefillInputs:
    """Inputs of the first forward pass of a request."""

    inputs: Tensor  # [T, H] embeddings; with media as wide as their rows, text padded with zeros
    positions: Tensor  # [axes, T] int64 rotary positions; axes is 3 for M-RoPE families, else 1
    delta: int  # position of decoded token n is n + delta, n counted from 0 over the whole sequence
    media: Tensor  # [T] bool: rows that came from an encoder
    attention: Attention | None = None  # None: causal
    spoken: Tensor | None = None  # int32 [k, S]: places of its rows for a talker; None: positions

    @property
    def layout(self) -> Tensor:
        """Int32 [k, S]: the places of the prompt's rows, as ``Talker.start`` takes them."""
        return (self.positions if self.spoken is None else self.spoken).to(torch.int32)


class Decoder(ModelComponent, Protocol):
    """An autoregressive transformer that runs without per-module state."""

    module: torch.nn.Module  # with all weights
    layers: int
    axes: int  # rotary position axes, see PrefillInputs.positions
    batches: bool  # whether one pass can continue several sequences; if not, each has its own ``new_cache``
    recurrent: bool  # whether layers have states besides keys and values
    splits_prompts: bool  # whether a prompt can be computed in several passes
    context: int  # longest sequence, prompt included
    vocabulary: int
    eos: frozenset[int]
    device: torch.device
    dtype: torch.dtype

    def new_cache(self) -> Any:
        """Return an empty ``transformers`` Cache for one sequence, as the model's own ``generate`` would use."""

    def embed(self, ids: Tensor) -> Tensor:
        """Return token embeddings: [...] int64 to [..., H]."""

    def forward(self, inputs: Tensor, positions: Tensor, cache: Any, mask: Any) -> Tensor:
        """Run the backbone: ``inputs`` [B, T, H] or wider, ``positions`` [axes, B, T] to hidden [B, T, H'].

        ``cache`` is a ``transformers`` Cache (DynamicCache in prefill, the slot cache in decode) that has all positions
        in each layer. ``mask`` is None (plain causal) or bool [B, 1, T, S], True where attention is allowed. Layers
        with a window narrow it down. A ``CrossDecoder`` takes a ``Crossing`` as well.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 [B, V] of [B, H'], -inf for forbidden ids."""


class CrossDecoder(Decoder, Protocol):
    """A decoder with cross-attention layers, which attend only to an encoder's rows.

    A sequence without such rows skips these layers.
    """

    crossed: Sequence[int]


class Reader(Protocol):
    """Work of a thinker before and after its layers.

    Engines that run the layers themselves use it.
    """

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
        """Return token embeddings: [...] int64 to [..., H]."""

    def special_id(self, text: str) -> int | None:
        """Return the id of the special token ``text``: None for plain text."""

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], context: int = 0, options: PromptOptions = PLAIN_PROMPT
    ) -> TokenizedPrompt:
        """Apply the chat template and tokenise.

        ``messages`` are ``{"role", "content"}``. The content is a string or a list of ``{"type": "text", "text"}`` and
        ``{"type": "image"|"video"|"audio"}`` parts. An assistant's message may have ``tool_calls``, whose arguments are
        objects, and ``reasoning_content``. Messages of role ``tool`` have the ``name`` of the function. Tools that the
        template does not support are written into messages. Alternatively, there is one message of role ``prompt``: its
        content, a text or token ids, takes no template.

        Raises ``BadRequest`` if user text contains a control or placeholder token of the model, for an unknown role and
        for an empty list. Raises ``ContextTooLong`` before it tokenises more than ``context`` tokens; 0 is the model's
        own context.
        """

    def encode_text(self, text: str, marked: bool = False, context: int = 0) -> Sequence[int]:
        """Return the ids of ``text`` without a template. Raises as ``prompt`` does.

        With ``marked``, the tokeniser's own tokens before and after a text are added.
        """

    def layout(self, prompt: TokenizedPrompt, media: Sequence[Encoded]) -> PromptLayout:
        """Expand placeholders and count positions.

        Raises ``ContextTooLong``. Raises ``BadRequest`` for items that do not match the prompt, or whose embeddings do
        not have the shape in their metadata.
        """

    def assemble_prefill(self, prompt: TokenizedPrompt, media: Sequence[Encoded]) -> PrefillInputs:
        """Expand placeholders and merge embeddings. Raises as ``layout`` does."""

    def decode_ids(self, ids: Sequence[int]) -> str:
        """Decode ids without control tokens."""

    def talker_prompt(self, prefill: PrefillInputs, hidden: Tensor, voice: str) -> Tensor:
        """Return rows for the talker after prefill: [S + 3, H].

        The last three are begin, end and pad of speech. ``hidden`` [T, H'] is the prefill's output. S is T, or the
        length of ``prefill.spoken``. The begin row may depend on the voice. An unknown voice raises ``BadRequest`` with
        the known ones.
        """

    def talker_row(self, inputs: Tensor, hidden: Tensor) -> Tensor:
        """Return the talker's rows [B, H] of one decode step: ``inputs`` [B, H], ``hidden`` [B, H']."""


class Thinker(Reader, Decoder, Protocol):
    """The LLM of a model: text in and out, media embeddings in, hidden rows out for a talker."""

    adapters: Adapters | None  # attached ones, see ``omnibus_models.adapters``


#: Output of one talker step: a code, or a frame of several.
