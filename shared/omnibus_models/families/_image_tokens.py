"""Images that a language model generates by tokens, in ragged batches."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import (
    LogitsProcessorList,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from omnibus import errors
from omnibus_models.contract import LoadedComponent


class RaggedCache(Cache):
    """Keys and values of sequences of different lengths.

    Per layer there are two tensors [rows, heads, room, head_dim].
    """

    def __init__(self, layer_tensors: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().__init__(layers=[])
        self._stored = layer_tensors
        self._index = torch.arange(len(layer_tensors[0][0]), device=layer_tensors[0][0].device)
        self._ends = torch.zeros_like(self._index)
        self._high = 0

    @classmethod
    def from_prefill(cls, cache: DynamicCache, room: int) -> "RaggedCache":
        """Copy the ``cache`` of a first forward pass, with ``room`` positions."""
        return cls([(_enlarge_cache(layer.keys, room), _enlarge_cache(layer.values, room)) for layer in cache.layers])

    @classmethod
    def from_parts(cls, parts: Sequence[tuple["RaggedCache", int, int]]) -> "RaggedCache":
        """Copy rows ``first`` to ``first + count`` of each of ``parts`` into one cache."""
        room = max(rows.capacity for rows, _, _ in parts)

        def stack_side(layer: int, side: int) -> Tensor:
            return torch.cat(
                [_enlarge_cache(rows._stored[layer][side][first : first + count], room) for rows, first, count in parts]
            )

        return cls([(stack_side(layer, 0), stack_side(layer, 1)) for layer in range(len(parts[0][0]._stored))])

    @property
    def count(self) -> int:
        return len(self._index)

    @property
    def capacity(self) -> int:
        return self._stored[0][0].shape[2]

    def begin_step(self, lengths: Sequence[int]) -> Tensor | None:
        """Prepare a forward pass that adds one position to each row.

        It follows the row's ``lengths``.

        Returns the positions each row may attend to: bool [rows, 1, 1, S], or None for all. The pass can be repeated
        until the caller updates the lengths.
        """
        self._ends = torch.tensor(lengths, device=self._index.device)
        self._high = max(lengths) + 1
        if min(lengths) + 1 == self._high:
            return None
        places = torch.arange(self._high, device=self._index.device)
        return (places[None] <= self._ends[:, None])[:, None, None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one position of each row ([rows, heads, 1, head_dim]); return all up to the longest."""
        keys, values = self._stored[layer_idx]
        keys[self._index, :, self._ends] = key_states[:, :, 0]
        values[self._index, :, self._ends] = value_states[:, :, 0]
        return keys[:, :, : self._high], values[:, :, : self._high]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._high - 1

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._high, 0


class TokenSampler:
    """Random choice of tokens, as in ``generate``, with the checkpoint's settings.

    Tokens from ``codes`` on are not part of an image. If one of them is drawn, the draw is repeated without them; the
    library's pipelines do not handle this case.
    """

    def __init__(self, module: Any, codes: int) -> None:
        config, _ = module._prepare_generation_config(None, do_sample=True)
        self._codes = codes
        self._warp = LogitsProcessorList()
        if config.suppress_tokens:
            self._warp.append(SuppressTokensLogitsProcessor(config.suppress_tokens, module.device))
        if config.temperature and config.temperature != 1.0:
            self._warp.append(TemperatureLogitsWarper(config.temperature))
        if config.top_k:
            self._warp.append(TopKLogitsWarper(config.top_k))
        if config.top_p and config.top_p < 1.0:
            self._warp.append(TopPLogitsWarper(config.top_p))

    def __call__(self, scores: Tensor, generators: Sequence[torch.Generator]) -> list[int]:
        """Return a token for each row of ``scores``, float32 [B, V]. Without an error, all generators advance."""
        if not bool(torch.isfinite(scores).all()):
            raise errors.Fatal("the model computed values that are not numbers for this image; check its weights")
        chances = self._token_probabilities(scores)
        return [
            self._sample_token(chance, score, generator)
            for chance, score, generator in zip(chances, scores, generators, strict=True)
        ]

    def _sample_token(self, chances: Tensor, scores: Tensor, generator: torch.Generator) -> int:
        token = int(torch.multinomial(chances, 1, generator=generator))
        if token < self._codes:
            return token
        picture = scores.clone()
        picture[self._codes :] = -torch.inf
        return int(torch.multinomial(self._token_probabilities(picture[None])[0], 1, generator=generator))

    def _token_probabilities(self, scores: Tensor) -> Tensor:
        """Return token probabilities, on the CPU: seeds work alike on every device."""
        weighted_scores: Tensor = self._warp(None, scores)
        return weighted_scores.softmax(-1).cpu()


@dataclass
class TokenDenoising:
    """One image in progress, see ``contract.Denoising``: its sequence and, for guidance, its twin.

    They are the rows from ``first`` on in ``cache``, ``length`` positions each. ``hidden`` [rows, H] is the prompt's
    hidden state until the first token is ``chosen``. ``positions`` [axes, steps] are those of the tokens.
    """

    grid: tuple[int, int]
    rows: int
    length: int
    positions: Tensor
    generator: torch.Generator = field(repr=False)
    cache: RaggedCache = field(repr=False)
    hidden: Tensor | None = field(repr=False)
    guidance: float = 1.0
    first: int = 0
    chosen: list[int] = field(default_factory=list)

    #: Positions of a step.
    tokens = 1
    #: Denoisings of all sizes can take a step together.
    shape = "tokens"

    @property
    def steps(self) -> int:
        return self.positions.shape[1]

    @property
    def done(self) -> int:
        return len(self.chosen)

    def append_token(self, token: int) -> None:
        """Append the token of one step; the previous one is in the cache."""
        self.length += bool(self.chosen)
        self.hidden = None
        self.chosen.append(token)


class TokenDenoiser(LoadedComponent, ABC):
    """A language model that generates images, one token in each step."""

    axes = 1

    def __init__(self, module: Any, backbone: Any, codes: int) -> None:
        super().__init__(module)
        weight = next(backbone.parameters())
        self.backbone = backbone
        self._choice = TokenSampler(module, codes)
        self._device: torch.device = weight.device
        self._dtype: torch.dtype = weight.dtype

    @torch.no_grad()
    def step(self, batch: Sequence[TokenDenoising]) -> None:
        """Sample the next token of each image. No image changes before all are sampled."""
        ahead = [one for one in batch if one.chosen]
        states = iter(self._advance_cache(ahead) if ahead else ())
        hidden = [next(states) if one.hidden is None else one.hidden for one in batch]
        scores = _apply_guidance(self._token_scores(torch.cat(hidden)).float(), batch)
        for one, token in zip(batch, self._choice(scores, [one.generator for one in batch]), strict=True):
            one.append_token(token)

    def latents(self, denoising: TokenDenoising) -> Tensor:
        """Return the tokens, [1, 1, rows, columns] float32 on the CPU."""
        return torch.tensor(denoising.chosen, dtype=torch.float32).view(1, 1, *denoising.grid)

    @abstractmethod
    def _embed_tokens(self, tokens: Tensor) -> Tensor:
        """Embed image tokens: [B] to [B, H]."""

    @abstractmethod
    def _token_scores(self, hidden: Tensor) -> Tensor:
        """Return scores [B, V] of hidden states [B, H]."""

    def _start_denoising(self, inputs: Tensor, positions: Tensor, **about: Any) -> TokenDenoising:
        """Begin an image: ``inputs`` [rows, T, H] of its prompt, at positions 0 to T - 1.

        ``positions`` and ``about`` are fields of ``TokenDenoising``.
        """
        rows, length, _ = inputs.shape
        cache = DynamicCache()
        places = torch.arange(length, device=self._device).expand(self.axes, rows, length)
        hidden = self._run_backbone(inputs, places, cache, None)[:, -1]
        # The last token is not read again.
        room = RaggedCache.from_prefill(cache, length + positions.shape[1] - 1)
        return TokenDenoising(rows=rows, length=length, positions=positions, cache=room, hidden=hidden, **about)

    def _advance_cache(self, batch: Sequence[TokenDenoising]) -> Sequence[Tensor]:
        """Compute the hidden states after each sequence's last token, [rows, H] each."""
        cache = _gather_caches(batch)
        mask = cache.begin_step([one.length for one in batch for _ in range(one.rows)])
        tokens = torch.tensor([one.chosen[-1] for one in batch for _ in range(one.rows)], device=self._device)
        places = torch.stack([one.positions[:, one.done - 1] for one in batch for _ in range(one.rows)], dim=1)
        hidden = self._run_backbone(
            self._embed_tokens(tokens)[:, None], places[..., None].to(self._device), cache, mask
        )
        return hidden[:, -1].split([one.rows for one in batch])

    def _run_backbone(self, inputs: Tensor, positions: Tensor, cache: Cache, mask: Tensor | None) -> Tensor:
        """Run ``inputs`` [B, T, H] at ``positions`` [axes, B, T]; return hidden [B, T, H]."""
        out = self.backbone(
            inputs_embeds=inputs,
            position_ids=positions if self.axes > 1 else positions[0],
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
        )
        hidden: Tensor = out.last_hidden_state
        return hidden


def _apply_guidance(scores: Tensor, batch: Sequence[TokenDenoising]) -> Tensor:
    """Apply guidance away from twins' scores: [rows, V] to [images, V]."""
    ends = list(accumulate(one.rows for one in batch))
    firsts = [end - one.rows for end, one in zip(ends, batch, strict=True)]
    positive, negative = scores[firsts], scores[[end - 1 for end in ends]]
    guidance = torch.tensor([one.guidance for one in batch], device=scores.device)
    return negative + (positive - negative) * guidance[:, None]


def _gather_caches(batch: Sequence[TokenDenoising]) -> RaggedCache:
    """Return one cache with the rows of ``batch`` in order.

    It is copied only if the batch differs from the last one.
    """
    firsts = [0, *accumulate(one.rows for one in batch)]
    cache = batch[0].cache
    same = all(one.cache is cache and one.first == first for one, first in zip(batch, firsts, strict=False))
    if same and cache.count == firsts[-1]:
        return cache
    cache = RaggedCache.from_parts([(one.cache, one.first, one.rows) for one in batch])
    for one, first in zip(batch, firsts, strict=False):
        one.cache, one.first = cache, first
    return cache


def _enlarge_cache(cache: Tensor, room: int) -> Tensor:
    """Copy [rows, heads, T, head_dim] into zeros with ``room`` positions."""
    rows, heads, length, width = cache.shape
    enlarged_cache = cache.new_zeros(rows, heads, room, width)
    enlarged_cache[:, :, :length] = cache
    return enlarged_cache
