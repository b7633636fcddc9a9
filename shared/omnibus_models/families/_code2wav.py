"""Frames of codes to waveform by Code2Wav, streamed without approximation.

Code2Wav is causal. Its transformer attends to a window of earlier frames in each layer, so its reach is window times
layers. It caches keys and values and processes each frame once. Convolutions follow. Their reach follows from the
configuration, so each piece begins that much earlier, and its invalid samples are cut off. The last samples of a frame
also depend on the next one: ``n`` frames are ``n`` times ``per_frame`` samples, less ``trailing_samples``.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from omnibus import errors
from omnibus_models.contract import Code
from omnibus_models.recorded_calls import RecordedCalls

_KERNEL = 7  # of every convolution wider than one
_DILATIONS = (1, 3, 9)  # of the residual units after each step up


def per_frame(config: Any) -> int:
    """Return the samples of one more frame."""
    return math.prod(config.upsampling_ratios) * math.prod(config.upsample_rates)


def trailing_samples(config: Any) -> int:
    """Return the missing samples at the end: each upsampling step in the decoder drops its last step."""
    samples = 0
    for rate in config.upsample_rates:
        samples = (samples + 1) * rate
    return samples


def warmup_samples(config: Any) -> int:
    """Return the invalid samples at the beginning of a later piece."""
    back = _KERNEL - 1
    steps = 0
    for rate in config.upsampling_ratios:
        steps = steps * rate + back
    steps += back
    for rate in config.upsample_rates:
        steps = steps * rate + back * sum(_DILATIONS)
    return steps + back


class Code2WavVocoding:
    """One waveform in progress, see ``contract.Vocoding``."""

    def __init__(self, module: Any, waves: RecordedCalls[Tensor]) -> None:
        """``waves`` are the calls of ``render_samples`` with ``module``."""
        config = module.config
        self._module = module
        self._waves = waves
        self._cache = DynamicCache(config=config)
        self._per_frame, self._lost, self._reach = per_frame(config), trailing_samples(config), warmup_samples(config)
        self._frames = torch.empty(1, 0, config.hidden_size, device=module.device, dtype=module.dtype)
        self._first = 0  # number of the first of ``_frames``
        self._sent = 0  # samples
        self._window = config.sliding_window * config.num_hidden_layers  # frames that a frame depends on
        self._unseen = 0  # frames that no later sample depends on

    def skip(self, samples: int) -> int:
        """Skip frames that affect only the first ``samples``."""
        self._sent = samples
        self._first = self._unseen = max(0, (samples - self._reach) // self._per_frame - self._window)
        return samples

    @torch.no_grad()
    def push(self, codes: Sequence[Code], last: bool) -> Tensor:
        """Append frames and return new final samples, float32 [n] on the CPU."""
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
        """Return int64 [1, groups, n]."""
        groups, size = self._module.config.num_quantizers, self._module.config.codebook_size
        for frame in frames:
            if isinstance(frame, int) or len(frame) != groups or not all(0 <= code < size for code in frame):
                raise errors.BadRequest(f"a frame of this codec has {groups} codes below {size}", param="codes")
        return torch.tensor(frames, device=self._module.device).T[None]

    def _run_transformer(self, codes: Tensor) -> None:
        """Append the transformer's hidden states of more frames: ``codes`` [1, groups, n]."""
        module = self._module
        inputs = module.code_embedding(codes + module.code_offset).mean(1)
        out = module.pre_transformer(inputs_embeds=inputs, past_key_values=self._cache, use_cache=True)
        self._frames = torch.cat([self._frames, out.last_hidden_state], dim=1)

    def _render_samples(self) -> Tensor:
        """Return the samples of all kept frames."""
        return self._waves(None, self._frames)


def render_samples(module: Any, frames: Tensor) -> Tensor:
    """Return the samples of hidden states [1, n, H] by the convolutions of ``module``."""
    wave = frames.transpose(1, 2)
    for blocks in module.upsample:
        for block in blocks:
            wave = block(wave)
    for block in module.decoder:
        wave = block(wave)
    return wave.clamp(-1, 1).reshape(-1)
