"""The typed contract between model families and the services that run them.

A *family* (``omnibus_models.families.*``) knows one architecture: how to load one component alone,
how to prepare its inputs and how to run it. A *service* knows batching, streams and requests, and no
architecture. Shapes: ``B`` rows of a batch, ``T`` positions, ``H`` hidden width, ``V`` vocabulary.
All tensors live on ``device``; families never keep per-request state on a module.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from omnibus_models.attention import Attention


@dataclass(frozen=True)
class Prepared:
    """One media item, decoded and preprocessed, ready to be batched with others of its modality."""

    modality: str  # image | video | audio
    features: Mapping[str, Tensor]
    meta: Mapping[str, Any]  # small JSON: n_tokens, grid_thw, second_per_grid, audio_len ...


@dataclass(frozen=True)
class Encoded:
    """One media item after its encoder: ``embeds`` is [n_tokens, H].

    Where an encoder speaks to the first ``k`` layers as well, rows are H * (1 + k) wide: first the embedding.
    """

    embeds: Tensor
    meta: Mapping[str, Any]


class Component(Protocol):
    """Anything that was loaded."""

    @property
    def parameters(self) -> int:
        """How many parameters were really loaded."""


class Encoder(Component, Protocol):
    """An image/video or audio encoder."""

    modalities: frozenset[str]
    closer: frozenset[str]  # modalities of which an item is looked at more closely when it is ``alone``; usually none

    def prepare(self, data: memoryview, modality: str, alone: bool = True) -> Prepared:
        """Decode and preprocess one media file (JPEG, WAV, MP4 bytes). CPU only, thread-safe.

        ``alone`` says that its request has no other item of its modality; only told to encoders of ``closer``.

        Raises ``BadMedia`` (unreadable, truncated, empty) and ``TooLarge`` (pixels, frames, seconds).
        The message is fixed text: decoder output is never echoed.
        """

    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Run one batch of items of any size and request. Equal to running them one by one."""


@dataclass(frozen=True)
class Prompt:
    """A tokenised chat: ``ids`` holds one placeholder per media item, still to be expanded."""

    ids: tuple[int, ...]
    modalities: tuple[str, ...]  # of the media, in the order in which the messages name them


class Run(NamedTuple):
    """Rows of one media item that follow one another in a prompt: ``rows`` of the item, from ``start`` on."""

    item: int
    rows: slice
    start: int


@dataclass(frozen=True)
class Layout:
    """A prompt as its model counts it."""

    ids: Sequence[int]  # as many placeholders as each item has rows
    starts: Sequence[int]  # where the rows of each item begin
    positions: Tensor  # as in Prefill, on the CPU
    delta: int  # as in Prefill
    media: Tensor  # as in Prefill, on the CPU; between the rows of one item there may be text

    def runs(self, media: Sequence[Encoded]) -> Iterator[Run]:
        """Where the rows of ``media`` are; an item with text between its rows has several runs."""
        for index, (item, start) in enumerate(zip(media, self.starts, strict=True)):
            places = self.media[start:].nonzero()[: item.embeds.shape[0], 0] + start
            ends = (places.diff() != 1).nonzero()[:, 0] + 1
            for first, end in pairwise([0, *ends.tolist(), len(places)] if len(places) else ()):
                yield Run(index, slice(first, end), int(places[first]))


@dataclass(frozen=True)
class Prefill:
    """What the first forward pass of a request consumes."""

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


class Decoder(Component, Protocol):
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
    """What a thinker does before and after its layers, for engines that run the layers themselves."""

    speaks: bool  # whether a talker can follow
    width: int  # of embeddings and of hidden rows
    context: int  # longest sequence, prompt included
    vocabulary: int
    eos: frozenset[int]
    device: torch.device
    dtype: torch.dtype

    def embed(self, ids: Tensor) -> Tensor:
        """Token embeddings: [...] int64 to [..., H]."""

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> Prompt:
        """Apply the chat template and tokenise.

        ``messages``: ``{"role", "content"}`` with content a string or a list of
        ``{"type": "text", "text"}`` and ``{"type": "image"|"video"|"audio"}`` parts. Raises
        ``BadRequest`` when user text holds one of the model's control or placeholder tokens, an
        unknown role or an empty list.
        """

    def words(self, text: str, marked: bool = False) -> Sequence[int]:
        """The ids of ``text`` as it stands, without a template. Raises ``BadRequest`` as ``prompt`` does.

        ``marked``: with what the tokeniser itself puts before and behind a text.
        """

    def layout(self, prompt: Prompt, media: Sequence[Encoded]) -> Layout:
        """Expand placeholders and count positions.

        Raises ``ContextTooLong``, and ``BadRequest`` for items that are not those of the prompt, or whose
        embedding has not the shape that their meta data says.
        """

    def assemble(self, prompt: Prompt, media: Sequence[Encoded]) -> Prefill:
        """Expand placeholders and merge embeddings. Raises as ``layout`` does."""

    def text(self, ids: Sequence[int]) -> str:
        """Decode ids, control tokens left out."""

    def talker_prompt(self, prefill: Prefill, hidden: Tensor, voice: str) -> Tensor:
        """Rows for the talker after prefill: [S + 3, H]; the last three are begin, end and pad of speech.

        ``hidden`` [T, H'] is the prefill's output; S is T, or what ``prefill.spoken`` says. The begin row may depend
        on the voice; an unknown voice raises ``BadRequest`` naming the known ones.
        """

    def talker_row(self, inputs: Tensor, hidden: Tensor) -> Tensor:
        """Rows for decoded tokens: ``inputs`` [B, H] and ``hidden`` [B, H'] of one decode step to [B, H]."""


class Thinker(Reader, Decoder, Protocol):
    """The LLM of a model: text in and out, media embeddings in, hidden rows out for a talker."""


#: What a talker says in one step: a code, or a frame of several.
Code = int | Sequence[int]


class CodePredictor(Protocol):
    """Makes frames of codes out of the first code of each."""

    vocabulary: int
    sampling: "Sampling"  # how codes are chosen, when a frame's first one is not chosen greedily

    def rest(self, hidden: Tensor, codes: Tensor, choose: Callable[[Tensor], Tensor]) -> Tensor:
        """The other codes of each frame: ``hidden`` [B, H'] and first ``codes`` [B] to int64 [B, groups - 1].

        ``hidden`` is what the first codes were chosen by. ``choose`` takes float32 logits [B, V] of the next code
        of each frame and gives the codes [B].
        """


class Talker(Decoder, Protocol):
    """Thinker rows in, codec codes out: one code per step, or with a ``predictor`` the first code of a frame."""

    max_codes: int  # steps of one answer
    bunch: int  # steps that share a message, because a vocoder can rarely use fewer
    predictor: CodePredictor | None

    def start(self, rows: Tensor, layout: Tensor, first: Tensor, voice: str) -> Prefill:
        """Prefill of one answer.

        ``rows`` [S + 3, H] from ``Thinker.talker_prompt``, ``layout`` [k, S] of the thinker's prefill and
        ``first`` [H], the row of the first generated token. Raises ``BadRequest`` for an unknown voice.
        """

    def step_inputs(self, codes: Tensor, rows: Tensor) -> Tensor:
        """Inputs of one step: previous ``codes`` [B] or frames [B, groups], thinker ``rows`` [B, H] to [B, H']."""


class Vocoder(Component, Protocol):
    """Codec codes to waveform."""

    rate: int  # samples per second
    samples_per_code: int
    groups: int  # codes of one frame; 1 where each code is one

    def open(self, voice: str, seed: int) -> "Vocoding":
        """Begin one waveform. ``seed`` fixes the noise. Raises ``BadRequest`` for an unknown voice."""


class Vocoding(Protocol):
    """One waveform in the making: a cursor over samples, so that none is lost or doubled."""

    def push(self, codes: Sequence[Code], last: bool) -> Tensor:
        """Take codes and return the samples that have become final, float32 [n] in [-1, 1], n may be 0.

        With ``last`` everything that is left comes out. The concatenation over all calls equals the
        one-shot waveform to 1e-5, however the codes are cut. Raises ``BadRequest`` for codes that there are not.
        """


class TextEncoder(Component, Protocol):
    """Prompts in, what guides a denoiser out. Prompts are ``Prepared`` of the modality ``text``.

    What guides away from something is another prompt; with ``twins`` it is made of the prompt itself, by ``unwanted``.
    """

    twins: bool

    def prepare(self, prompt: str, items: Sequence[Encoded] = ()) -> Prepared:
        """Tokenise one prompt. CPU only, thread-safe.

        ``items``: embeddings of the pictures that it is about, on the CPU. Raises ``BadRequest`` when the prompt holds
        one of the model's control tokens or for pictures that the model does not take, and ``ContextTooLong``.
        """

    def unwanted(self, prompt: str, negative: str) -> Prepared:
        """What ``prompt`` is guided away from; for models with ``twins`` alone.

        Raises as ``prepare`` does, and ``BadRequest`` for a ``negative`` prompt where none can be told.
        """

    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Run one batch of prompts of any length and request: [n_tokens, W] each, to 1e-5 as one by one."""


@dataclass(frozen=True)
class Picture:
    """A picture that is to be made; a video when it has more than one frame. Sizes are in pixels.

    ``guidance`` None is the family's usual one. ``seed`` fixes the noise, the same on every device.
    """

    width: int
    height: int
    steps: int
    seed: int
    guidance: float | None = None
    frames: int = 1


class Denoising(Protocol):
    """One picture in the making: latents and where they stand. It has all the state that there is.

    Those of one ``shape`` can take a step together. A step of this one takes ``rows`` rows of a batch (two where
    a negative prompt guides as well) of ``tokens`` positions each. ``done`` counts its steps.
    """

    @property
    def shape(self) -> Hashable: ...

    @property
    def rows(self) -> int: ...

    @property
    def tokens(self) -> int: ...

    @property
    def steps(self) -> int: ...

    @property
    def done(self) -> int: ...


class Stepper(Component, Protocol):
    """What makes pictures step by step, many at a time."""

    def step(self, batch: Sequence[Any]) -> None:
        """One step of each; all have one shape, none is done. All take it, or none when this raises.

        The latents are those of steps alone to 1e-5, whoever else is in the batch.
        """

    def latents(self, denoising: Any) -> Tensor:
        """[channels, frames, height, width] float32, as a decoder takes them."""


class Denoiser(Stepper, Protocol):
    """A diffusion transformer: noise to latents, one step at a time.

    A language model that makes pictures is one too: a step is a token, and latents are tokens, [1, 1, rows, columns].
    How many steps there are is then its own choice.

    ``edits``: whether ``open`` takes an ``image``, latents of the picture that this one is made of, as ``latents``
    gives them; ``unit`` is then how many pixels of it are one latent, on either side. ``follows``: whether ``open``
    takes a ``prior``, the latents of one.
    """

    edits: bool
    unit: int
    follows: bool

    def open(self, picture: Picture, guides: Sequence[Tensor]) -> Denoising:
        """Begin a picture. ``guides`` [T, W]: the prompt and, where there is one, the negative prompt.

        Raises ``BadRequest`` for a size or a number of steps that the model cannot make, and without an image or a
        prior where it needs one.
        """

    def palette(self) -> Tensor:
        """What ``preview`` needs to know of the decoder's colours. May load the decoder for a moment: keep it."""

    def preview(self, denoising: Any, palette: Tensor) -> Tensor:
        """A small picture of what the latents promise after the last step, uint8 [height, width, 3]."""


class Prior(Stepper, Protocol):
    """A language model that draws a picture roughly, one token in a step, for a denoiser to follow.

    Its latents are the tokens, [1, 1, rows, columns].
    """

    def open(self, picture: Picture, prompt: str) -> Denoising:
        """Begin a picture, of which the sides and the seed count.

        Raises ``BadRequest`` for sides that the model cannot make and for control tokens, and ``ContextTooLong``.
        """


class ImageDecoder(Component, Protocol):
    """The decoder of a VAE. It may keep caches on its module, so one call at a time."""

    def decode(self, latents: Tensor) -> Tensor:
        """[channels, 1, height, width] latents to a picture, uint8 [H, W, 3]. Raises ``BadRequest`` for others."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. ``temperature`` 0 is greedy."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


class Family(Protocol):
    """One architecture. ``components`` names what can be loaded alone, e.g. vision, audio, thinker."""

    name: str
    components: tuple[str, ...]

    def load(self, component: str, checkpoint: Path, device: str = "cpu", dtype: str = "float32") -> Any:
        """Load one component and nothing else: one of the protocols above.

        The object carries ``module`` (a ``torch.nn.Module`` that owns every loaded parameter). Missing
        weights raise ``Fatal`` with their names.
        """

    def reader(self, checkpoint: Path, dtype: str = "float32") -> Reader:
        """The thinker without its layers, on the CPU: it loads token embeddings and the final norm alone."""


@dataclass
class Loaded:
    """Mixin: every loaded component can say how many parameters it really holds."""

    closer: ClassVar[frozenset[str]] = frozenset()  # see ``Encoder``
    edits: ClassVar[bool] = False  # see ``Denoiser``
    follows: ClassVar[bool] = False  # see ``Denoiser``
    twins: ClassVar[bool] = False  # see ``TextEncoder``

    module: torch.nn.Module = field(repr=False)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.module.parameters())
