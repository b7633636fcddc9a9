"""Streaming vocoder: codec codes to waveform with a diffusion transformer (DiT) and BigVGAN.

Both networks look ahead, so a sample is final only when enough later codes are known. Cursors emit exactly the final
samples, without loss or duplication. The context of each network:

* BigVGAN is a stack of convolutions. Its reach follows from its configuration, so its windows are exact.
* The DiT attends at most one block (12 codes) ahead and two back. The solver evaluates it 36 times, so its formal reach
  is seconds. The influence decreases by a factor of 30 to 50 per block.
  Largest waveform error against one shot, on the tiny checkpoint with 144 codes and two draws (float32 rounding).
  1 ahead 3e-4, 2 ahead 4e-6, 3 ahead 6e-7, 1 back 2e-4, 2 back 3e-6, 3 back 4e-7.
  Two ahead is the least that keeps 1e-5. Three back costs little and adds no delay. The first samples
  appear after (1 + ahead) blocks, 36 codes, plus BigVGAN's reach beyond the first block.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from omnibus_models.recorded_calls import RecordedCalls

BLOCKS_BACK = 3
BLOCKS_AHEAD = 2
# Most blocks that one DiT pass may finish: attention is quadratic in the window.
_MAX_BATCH_BLOCKS = 8

# The library's defaults for ``generate``; time runs slowly at first ("sway").
_TIME_POINT_COUNT = 10
_GUIDANCE = 0.5
_SWAY = -1.0
# An anti-aliased activation: 12 taps at twice the rate up and down again.
_ACTIVATION_REACH = 6


class SpeakerEncoder(nn.Module):
    """The speaker encoder of a DiT, which also accepts its own embeddings.

    The library encodes the voice's reference again in each of the solver's 36 evaluations.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, condition: Tensor) -> Tensor:
        """Encode reference spectrograms [B, F, mel], or return embeddings [B, D] unchanged."""
        return condition if condition.dim() == 2 else self.encoder(condition)


def accept_embedded_voices(dit: Any) -> None:
    """Make ``dit`` accept voices as ``embed_reference`` returns them. It is idempotent."""
    parts = dit.input_embed
    if not isinstance(parts.spk_encoder, SpeakerEncoder):
        parts.spk_encoder = SpeakerEncoder(parts.spk_encoder)


def share_block_mask(dit: Any) -> None:
    """Let rows and heads of ``dit`` share one mask of blocks.

    The library computes it for each head, in each layer of each evaluation, which takes a third of their time.
    """

    def find_block_distance(hidden: Tensor) -> Tensor:
        blocks = torch.arange(hidden.shape[1], device=hidden.device) // dit.block_size
        return (blocks[None] - blocks[:, None])[None, None]

    dit._create_block_diff = find_block_distance


class DitNetworks:
    """The DiT and BigVGAN of one model.

    On a CPU they are recorded, see ``RecordedCalls``.
    """

    def __init__(self, dit: Any, bigvgan: Any) -> None:
        self.dit, self.bigvgan = dit, bigvgan
        self._velocities = RecordedCalls(dit, self._predict_velocity)
        self._waves = RecordedCalls(bigvgan, lambda _, mel: bigvgan(mel))

    def sample_mel(self, cond: Tensor, voice: Tensor, codes: Tensor, noise: Tensor) -> Tensor:
        """The library's ``dit.sample`` with given noise: [1, C] codes, [1, F, mel] noise to [F, mel].

        ``cond`` [1, S] and ``voice`` [2, D], see ``embed_reference``, are the speaker's. The library draws noise from
        the process-wide generator, which concurrent requests would share.
        """
        from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import RungeKutta4ODESolver

        # With and without guidance, as the library does with a reference.
        speaker = torch.cat([cond, torch.zeros_like(cond)]).unsqueeze(1).repeat(1, noise.shape[1], 1)
        guided_codes = torch.cat([codes, torch.zeros_like(codes)])

        def predict_velocity(time: Tensor, state: Tensor) -> Tensor:
            return self._velocities(None, state, time, speaker, voice, guided_codes)

        time = torch.linspace(0, 1, _TIME_POINT_COUNT, device=codes.device, dtype=cond.dtype)
        time += _SWAY * (torch.cos(torch.pi / 2 * time) - 1 + time)
        states: Tensor = RungeKutta4ODESolver(function=predict_velocity, initial_value=noise).integrate(time)
        return states[-1][0]

    def render(self, mel: Tensor) -> Tensor:
        """Return the samples of [F, mel]: [n]."""
        return self._waves(None, mel.T[None]).reshape(-1)

    def _predict_velocity(
        self, _: None, state: Tensor, time: Tensor, speaker: Tensor, voice: Tensor, codes: Tensor
    ) -> Tensor:
        """Return the velocity of ``state`` [1, F, mel] with guidance; the other inputs have two rows."""
        out = self.dit(
            hidden_states=torch.cat([state, state]),
            speaker_embedding=speaker,
            condition_vector=voice,
            quantized_code=codes,
            time_step=time,
            apply_cfg=False,
        )
        conditional, plain = out.chunk(2, dim=0)
        return conditional + (conditional - plain) * _GUIDANCE


@torch.no_grad()
def embed_reference(dit: Any, ref_mel: Tensor) -> Tensor:
    """Return embeddings [2, D] of a voice's reference [1, F, mel] and of silence.

    Guidance contrasts the two.
    """
    embeddings: Tensor = dit.input_embed.spk_encoder(torch.cat([ref_mel, torch.zeros_like(ref_mel)]))
    return embeddings


def context_frames(config: Any) -> int:
    """Return the mel frames on either side that affect one BigVGAN sample.

    They follow from its configuration.
    """
    block = max(map(_block_reach, config.resblock_kernel_sizes, config.resblock_dilation_sizes))
    frames, rate = 3.0, 1
    for stride, kernel in zip(config.upsample_rates, config.upsample_kernel_sizes, strict=True):
        frames += math.ceil(kernel / stride) / rate
        rate *= stride
        frames += block / rate
    return math.ceil(frames + (_ACTIVATION_REACH + 3) / rate)


def _block_reach(kernel: int, dilations: Sequence[int]) -> int:
    half = (kernel - 1) // 2
    return sum(half * dilation + half + 2 * _ACTIVATION_REACH for dilation in dilations)


class DitVocoding:
    """One waveform in progress, see ``contract.Vocoding``.

    ``cond`` and ``voice`` as in ``DitNetworks.sample_mel``.
    """

    def __init__(self, networks: DitNetworks, cond: Tensor, voice: Tensor, seed: int) -> None:
        dit, bigvgan = networks.dit, networks.bigvgan
        self._networks = networks
        self._cond, self._voice = cond, voice
        self._generator = torch.Generator().manual_seed(seed)
        self._repeats: int = dit.config.repeats
        self._block: int = dit.config.block_size // self._repeats  # codes
        self._reach = context_frames(bigvgan.config)
        self._per_frame = math.prod(bigvgan.config.upsample_rates)
        self._codes: list[int] = []
        self._noise = torch.empty(0, dit.config.mel_dim)
        self._mel = torch.empty(0, dit.config.mel_dim, device=cond.device)
        self._sounded = 0  # frames already turned into samples

    def skip(self, samples: int) -> int:
        """Skip blocks that affect only the first ``samples``."""
        self._sounded = samples // self._per_frame
        frames = self._block * self._repeats
        blocks = max(0, self._sounded - self._reach) // frames
        self._mel = self._mel.new_zeros(blocks * frames, self._mel.shape[1])  # never read
        return self._sounded * self._per_frame

    @torch.no_grad()
    def push(self, codes: Sequence[int], last: bool) -> Tensor:
        """Append codes and return new final samples, float32 [n] on the CPU."""
        self._codes += codes
        self._draw_noise(len(codes))
        self._denoise_mel(last)
        return self._render_samples(last)

    def _draw_noise(self, codes: int) -> None:
        # Normal numbers are drawn in groups of 16, so pieces equal one large draw as long as a code's
        # share is a multiple of 16: 2 frames of 80 mel bands here.
        if codes:
            more = torch.randn(codes * self._repeats, self._noise.shape[1], generator=self._generator)
            self._noise = torch.cat([self._noise, more])

    def _denoise_mel(self, last: bool) -> None:
        done_blocks = self._mel.shape[0] // (self._block * self._repeats)
        code_blocks = len(self._codes) / self._block
        ready = math.ceil(code_blocks) if last else int(code_blocks) - BLOCKS_AHEAD
        for first in range(done_blocks, ready, _MAX_BATCH_BLOCKS):
            self._denoise_blocks(first, min(ready, first + _MAX_BATCH_BLOCKS))

    def _denoise_blocks(self, first: int, end: int) -> None:
        low = max(0, first - BLOCKS_BACK) * self._block
        high = min(len(self._codes), (end + BLOCKS_AHEAD) * self._block)
        device = self._cond.device
        codes = torch.tensor([self._codes[low:high]], device=device)
        noise = self._noise[None, low * self._repeats : high * self._repeats].to(device)
        mel = self._networks.sample_mel(self._cond, self._voice, codes, noise)
        skip = (first * self._block - low) * self._repeats
        self._mel = torch.cat([self._mel, mel[skip : skip + (end - first) * self._block * self._repeats]])

    def _render_samples(self, last: bool) -> Tensor:
        frame_count = self._mel.shape[0]
        first, end = self._sounded, frame_count if last else frame_count - self._reach
        if end <= first:
            return torch.empty(0)
        low, high = max(0, first - self._reach), min(frame_count, end + self._reach)
        wave = self._networks.render(self._mel[low:high])
        self._sounded = end
        return wave[(first - low) * self._per_frame : (end - low) * self._per_frame].float()
