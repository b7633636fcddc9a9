"""Qwen2.5-Omni: vision and audio encoders, thinker, talker and vocoder, each loaded alone."""

import dataclasses
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from omnibus import errors
from omnibus_models import dit_vocoder, loading, media
from omnibus_models.contract import Encoded, LoadedComponent, PrefillInputs, Prepared
from omnibus_models.families import _mrope, _omni, _omni_audio, _qwen

SAMPLE_RATE_HERTZ = 24_000  # samples per second of the released vocoder; no configuration names it
_DIT = {r"^token2wav\.code2wav_dit_model\.": ""}
_BIGVGAN = {r"^token2wav\.code2wav_bigvgan_model\.": ""}


class Qwen25OmniAudioEncoder(_omni_audio.TowerAudioEncoder):
    """Audio through the audio tower, see ``contract.MediaEncoder``."""

    # As in the joint processor: the last frames depend on silence after the end.
    padding = "max_length"

    def row_count(self, frames: int) -> int:
        """Return the rows of ``frames`` mel frames."""
        return audio_rows(frames)

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Run one forward pass. Attention stays within a window of one item, so a batch equals its items.

        Rounding of sums depends on their shapes. To keep items independent, each window is padded to its whole length,
        and a single one gets a silent one next to it.
        """
        if not batch:
            return []
        module: Any = self.module
        mels = [item.features["features"] for item in batch]
        size = 2 * module.audio_tower.n_window
        if sum(mel.shape[1] for mel in mels) <= size:
            mels.append(torch.zeros(mels[0].shape[0], size))
        windows = [window for mel in mels for window in mel.split(size, dim=1)]
        padded_windows = torch.stack([nn.functional.pad(window, (0, size - window.shape[1])) for window in windows])
        frames = torch.tensor([mel.shape[1] for mel in mels])
        lengths = torch.tensor([window.shape[1] for window in windows])
        # Rows after the second convolution without padding; the library would count the longest window's.
        valid = torch.arange((size + 1) // 2) < ((lengths + 1) // 2)[:, None]
        device = module.device
        out = module.audio_tower(
            torch.cat(mels, dim=1).to(device),
            feature_lens=frames.to(device),
            padded_feature=padded_windows.to(device),
            chunk_lengths=lengths.to(device),
            valid_indices=valid.flatten().nonzero().squeeze(-1).to(device),
        )
        counts = [item.meta["n_tokens"] for item in batch]
        split = out.last_hidden_state[: sum(counts)].split(counts)
        return [Encoded(row, item.meta) for row, item in zip(split, batch, strict=True)]

    def split_item(self, item: Prepared) -> Sequence[Prepared]:
        """Cut audio into windows of the tower, with separate positions and attention.

        See ``contract.MediaEncoder``. A few frames after the last window may give no row, and are left out.
        """
        module: Any = self.module
        size = 2 * module.audio_tower.n_window
        if size % 4:  # rows have four frames each: one would be in two windows
            return [item]
        windows = item.features["features"].split(size, dim=1)
        return [_sound_of(window) for window in windows if self.row_count(window.shape[1])]

    def join_parts(self, parts: Sequence[Prepared]) -> Prepared:
        """See ``contract.MediaEncoder``; all parts except the last are whole windows."""
        return _sound_of(torch.cat([part.features["features"] for part in parts], dim=1))


class Qwen25OmniThinker(_qwen.QwenThinker):
    """The language model of Qwen2.5-Omni; a talker can follow."""

    speaks = True

    def __init__(self, module: Any, checkpoint: Path, talker: Any) -> None:
        super().__init__(module, checkpoint, ("image", "video", "audio"))
        self._begins = {name: int(voice["bos_token"]) for name, voice in _read_voices(checkpoint).items()}
        self._ends = (talker.tts_text_end_token_id, talker.tts_text_pad_token_id)

    @torch.no_grad()
    def talker_prompt(self, prefill: PrefillInputs, hidden: Tensor, voice: str) -> Tensor:
        """Return [T + 3, H]: hidden plus text embedding per position, then begin, end and pad of speech."""
        _omni_audio.require_voice(voice, self._begins)
        # A media row's own embedding is left out: the talker gets media only through hidden states.
        texts = prefill.inputs.masked_fill(prefill.media[:, None], 0)
        marks = self.embed(torch.tensor([self._begins[voice], *self._ends], device=self.device))
        return torch.cat([hidden + texts, marks])

    def talker_row(self, inputs: Tensor, hidden: Tensor) -> Tensor:
        """Return the talker's rows [B, H] of one decode step."""
        return inputs + hidden

    def _row_count(self, meta: Mapping[str, Any]) -> int:
        return (
            audio_rows(operator.index(meta["audio_len"])) if meta["modality"] == "audio" else super()._row_count(meta)
        )

    def _count_positions(self, ids: Tensor, media: Sequence[Encoded]) -> tuple[Tensor, int]:
        module: Any = self.module
        merge, pace = module.config.vision_config.spatial_merge_size, module.config.position_id_per_seconds
        return _mrope.count_positions(ids, self._placeholders, media, merge, pace)


class Qwen25OmniTalker(_qwen.QwenDecoder):
    """Thinker rows in, codec codes out, see ``contract.Talker``.

    The library adds the codec's begin and pad embeddings, and M-RoPE, only with a mask. They always belong there.
    """

    bunch = 12  # a block of the vocoder
    predictor = None

    def __init__(self, module: Any, max_codes: int, steps_per_second: float) -> None:
        super().__init__(module, module.model, module.codec_head, {module.codec_pad_token, module.codec_eos_token})
        self.max_codes = max_codes
        self.steps_per_second = steps_per_second

    @torch.no_grad()
    def forward(self, inputs: Tensor, positions: Tensor, cache: Any, mask: Tensor | None) -> Tensor:
        """Run [B, T, H] at ``positions`` [3, B, T]; return hidden [B, T, H'].

        It includes the projection and the final norm.
        """
        module: Any = self.module
        return super().forward(module.thinker_to_talker_proj(inputs), positions, cache, mask)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [B, V] of [B, H']; the codec's begin token is never sampled."""
        scores = super().logits(hidden)
        module: Any = self.module
        scores[:, module.codec_bos_token] = -math.inf
        return scores

    @torch.no_grad()
    def start(self, rows: Tensor, layout: Tensor, first: Tensor, voice: str) -> PrefillInputs:
        """Return prompt rows, begin of speech and the first token.

        The last two have the codec's marks.
        """
        module: Any = self.module
        marks = torch.tensor([module.codec_pad_token, module.codec_bos_token], device=self.device)
        speech = torch.stack([rows[-3], first]).to(self.device, self.dtype) + self.embed(marks)
        inputs = torch.cat([rows[:-3].to(self.device, self.dtype), speech])
        more = layout[:, -1:].max() + torch.arange(1, 3, device=layout.device)
        places = torch.cat([layout, more.expand(layout.shape[0], 2)], dim=1).to(self.device)
        delta = int(places.max()) + 1 - len(inputs)
        return PrefillInputs(inputs, places, delta, torch.zeros(len(inputs), dtype=torch.bool, device=self.device))

    @torch.no_grad()
    def step_inputs(self, codes: Tensor, rows: Tensor) -> Tensor:
        """Combine previous ``codes`` [B] and thinker ``rows`` [B, H] to [B, H]."""
        return self.embed(codes) + rows.to(self.device, self.dtype)


@dataclass
class Qwen25OmniVocoder(LoadedComponent):
    """DiT and BigVGAN, always in float32 as in the library, see ``contract.Vocoder``."""

    dit: Any
    bigvgan: Any
    voices: Mapping[str, Mapping[str, Any]]
    rate: int = SAMPLE_RATE_HERTZ
    groups: int = 1

    def __post_init__(self) -> None:
        dit_vocoder.accept_embedded_voices(self.dit)
        dit_vocoder.share_block_mask(self.dit)
        self._networks = dit_vocoder.DitNetworks(self.dit, self.bigvgan)
        self._conditions: dict[str, tuple[Tensor, Tensor]] = {}  # by voice, in the form of ``DitVocoding``

    @property
    def samples_per_code(self) -> int:
        """Number of samples of one code."""
        return int(self.dit.config.repeats * math.prod(self.bigvgan.config.upsample_rates))

    def open(self, voice: str, seed: int) -> dit_vocoder.DitVocoding:
        """Begin one waveform. The noise is drawn on the CPU, so it is the same on every device."""
        _omni_audio.require_voice(voice, self.voices)
        conditions = self._conditions.get(voice)
        if conditions is None:
            speaker, device = self.voices[voice], self.dit.device
            embedding = dit_vocoder.embed_reference(self.dit, speaker["ref_mel"].float().to(device))
            conditions = self._conditions[voice] = (speaker["cond"].float().to(device), embedding)
        return dit_vocoder.DitVocoding(self._networks, *conditions, seed)


class Qwen25Omni(_omni.OmniFamily):
    """See ``contract.ModelFamily``."""

    name = "qwen2_5_omni"
    library = "Qwen2_5Omni"

    def reader(self, checkpoint: Path, dtype: str = "float32") -> Qwen25OmniThinker:
        """See ``contract.ModelFamily``."""
        checkpoint = Path(checkpoint)
        config = self._load_config(checkpoint)
        drop = ("visual", "audio_tower", "model.layers", "lm_head")
        return self._make_thinker(self._load_part(config, checkpoint, drop, "cpu", dtype), checkpoint, config)

    def _make_audio_encoder(
        self, module: Any, features: Any, limits: media.MediaDecodeLimits
    ) -> Qwen25OmniAudioEncoder:
        # The extractor would silently cut off audio longer than its window.
        seconds = min(limits.seconds, float(features.chunk_length))
        return Qwen25OmniAudioEncoder(module, features, dataclasses.replace(limits, seconds=seconds))

    def _make_thinker(self, module: Any, checkpoint: Path, config: Any) -> Qwen25OmniThinker:
        return Qwen25OmniThinker(module, checkpoint, config.talker_config)

    def _load_talker(self, config: Any, checkpoint: Path, device: str, dtype: str) -> Qwen25OmniTalker:
        from transformers import Qwen2_5OmniTalkerForConditionalGeneration as TalkerModel

        module = loading.load_model(TalkerModel, checkpoint, device=device, dtype=dtype, config=config.talker_config)
        parts = config.token2wav_config
        samples = parts.dit_config.repeats * math.prod(parts.bigvgan_config.upsample_rates)
        return Qwen25OmniTalker(module, self._max_codes(checkpoint), SAMPLE_RATE_HERTZ / samples)

    def _load_vocoder(self, config: Any, checkpoint: Path, device: str, dtype: str) -> Qwen25OmniVocoder:
        from transformers import Qwen2_5OmniToken2WavBigVGANModel as BigVGANModel
        from transformers import Qwen2_5OmniToken2WavDiTModel as DiTModel

        parts = config.token2wav_config
        dit = loading.load_model(DiTModel, checkpoint, device=device, config=parts.dit_config, key_mapping=_DIT)
        bigvgan = loading.load_model(
            BigVGANModel, checkpoint, device=device, config=parts.bigvgan_config, key_mapping=_BIGVGAN
        )
        return Qwen25OmniVocoder(nn.ModuleList([dit, bigvgan]), dit, bigvgan, _read_voices(checkpoint))


def _sound_of(mel: Tensor) -> Prepared:
    frames = mel.shape[1]
    meta = {"modality": "audio", "n_tokens": audio_rows(frames), "audio_len": frames}
    return Prepared("audio", {"features": mel}, meta)


def audio_rows(frames: int) -> int:
    """Return the rows of ``frames`` mel frames: two convolutions and a pooling."""
    return ((frames - 1) // 2 - 1) // 2 + 1


def _read_voices(checkpoint: Path) -> dict[str, dict[str, Any]]:
    path = Path(checkpoint) / "spk_dict.pt"
    if not path.exists():
        raise errors.Fatal(f"{path} is missing; it contains the voices")
    voices: dict[str, dict[str, Any]] = torch.load(path, map_location="cpu", weights_only=True)
    return voices


FAMILY = Qwen25Omni()
