"""Frames of codes to waveform by Code2Wav, piece by piece and exactly.

It looks back only. Its transformer sees a window of earlier frames in each layer, so its reach is window times layers:
it keeps keys and values of what it has seen, and never sees a frame twice. What it says goes through convolutions.
Their reach follows from the configuration, so each piece begins that much earlier and what is not true of it yet
is cut off. The last samples that frames become are made of the next frame as well: ``n`` frames are ``n`` times
``per_frame`` samples, less ``trailing_samples``.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from omnibus import errors
from omnibus_models.contract import Code

_KERNEL = 7  # of every convolution that is wider than one
_DILATIONS = (1, 3, 9)  # of the residual units after each step up


def per_frame(config: Any) -> int:
    """Samples that one more frame becomes."""
    return math.prod(config.upsampling_ratios) * math.prod(config.upsample_rates)


def trailing_samples(config: Any) -> int:
    """Samples at the end that are still to come: each step up in the decoder drops its last step."""
    samples = 0
    for rate in config.upsample_rates:
        samples = (samples + 1) * rate
    return samples


def warmup_samples(config: Any) -> int:
    """Samples at the beginning of a piece that are not true, when there were frames before it."""
    back = _KERNEL - 1
    steps = 0
    for rate in config.upsampling_ratios:
        steps = steps * rate + back
    steps += back
    for rate in config.upsample_rates:
        steps = steps * rate + back * sum(_DILATIONS)
    return steps + back


class Code2WavVocoding:
    """One waveform in the making, see ``contract.Vocoding``."""

    def __init__(self, module: Any) -> None:
        config = module.config
        self._module = module
        self._cache = DynamicCache(config=config)
        self._per_frame, self._lost, self._reach = per_frame(config), trailing_samples(config), warmup_samples(config)
        self._frames = torch.empty(1, 0, config.hidden_size, device=module.device, dtype=module.dtype)
        self._first = 0  # the frame that ``_frames`` begins with
        self._sent = 0  # samples
        self._window = config.sliding_window * config.num_hidden_layers  # frames that a frame depends on
        self._unseen = 0  # frames that nothing to come depends on

    def skip(self, samples: int) -> int:
        """See nothing before the frames that samples after the first ``samples`` depend on."""
        self._sent = samples
        self._first = self._unseen = max(0, (samples - self._reach) // self._per_frame - self._window)
        return samples

    @torch.no_grad()
    def push(self, codes: Sequence[Code], last: bool) -> Tensor:
        """Take frames and return the samples that have become final, float32 [n] on the CPU."""
        if not codes:
            return torch.empty(0)
        unseen = min(len(codes), self._unseen)
        self._unseen -= unseen
        if len(codes) == unseen:
            return torch.empty(0)
        self._run_transformer(self._check_codes(codes[unseen:]))
        end = self._first + self._frames.shape[1]
        if end * self._per_frame - self._lost <= self._sent:
            return torch.empty(0)
        first = max(0, (self._sent - self._reach) // self._per_frame)
        self._frames, self._first = self._frames[:, first - self._first :], first
        wave = self._render_samples()[self._sent - first * self._per_frame :]
        self._sent = end * self._per_frame - self._lost
        return wave.float().cpu()

    def _check_codes(self, frames: Sequence[Code]) -> Tensor:
        """Int64 [1, groups, n]."""
        groups, size = self._module.config.num_quantizers, self._module.config.codebook_size
        for frame in frames:
            if isinstance(frame, int) or len(frame) != groups or not all(0 <= code < size for code in frame):
                raise errors.BadRequest(f"a frame of this codec has {groups} codes below {size}", param="codes")
        return torch.tensor(frames, device=self._module.device).T[None]

    def _run_transformer(self, codes: Tensor) -> None:
        """Keep what the transformer says of more frames: ``codes`` [1, groups, n]."""
        module = self._module
        inputs = module.code_embedding(codes + module.code_offset).mean(1)
        out = module.pre_transformer(inputs_embeds=inputs, past_key_values=self._cache, use_cache=True)
        self._frames = torch.cat([self._frames, out.last_hidden_state], dim=1)

    def _render_samples(self) -> Tensor:
        """The samples of all frames that are kept."""
        wave = self._frames.transpose(1, 2)
        for blocks in self._module.upsample:
            for block in blocks:
                wave = block(wave)
        for block in self._module.decoder:
            wave = block(wave)
        return wave.clamp(-1, 1).reshape(-1)
