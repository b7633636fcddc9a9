"""Qwen3-Omni: encoders, thinker, talker with its code predictor, and vocoder, each loaded alone."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from omnibus import errors
from omnibus_models import loading, media
from omnibus_models.contract import Encoded, LoadedComponent, PrefillInputs, Prepared, PromptLayout
from omnibus_models.families import _code2wav, _mrope, _omni, _omni_audio, _qwen3, _qwen3_talker
from omnibus_models.families._qwen3_talker import Qwen3Talker
from omnibus_models.recorded_calls import RecordedCalls

SAMPLE_RATE_HERTZ = 24_000  # samples per second of the released vocoder; no configuration names it
_CODE2WAV = {r"^code2wav\.": ""}
_PREFIX_TOKENS = 3  # tokens that begin an answer: a mark, the role, a line break


class Qwen3OmniAudioEncoder(_omni_audio.TowerAudioEncoder):
    """Audio through the audio tower, see ``contract.MediaEncoder``."""

    padding = True
    least = 480  # shorter audio than the window has no spectrum

    def row_count(self, frames: int) -> int:
        """Return the rows of ``frames`` mel frames."""
        return _audio_rows(frames, self._audio_tower.n_window)

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Run one forward pass for all full windows, and one per other item.

        The library pads windows to the longest of a call, and its convolutions depend on the padding. Longer items next
        to a short one would change its result.
        """
        window = 2 * self._audio_tower.n_window
        full = [index for index, item in enumerate(batch) if item.meta["audio_len"] >= window]
        groups = [full] if full else []
        groups += [[index] for index in range(len(batch)) if index not in full]
        rows = {
            index: row
            for group in groups
            for index, row in zip(group, self._encode_group([batch[index] for index in group]), strict=True)
        }
        return [Encoded(rows[index], item.meta) for index, item in enumerate(batch)]

    @property
    def _audio_tower(self) -> Any:
        module: Any = self.module
        return module.audio_tower

    def _encode_group(self, group: Sequence[Prepared]) -> Sequence[Tensor]:
        mels = torch.cat([item.features["features"] for item in group], dim=1)
        lengths = torch.tensor([item.meta["audio_len"] for item in group])
        tower = self._audio_tower
        out = tower(mels.to(tower.device), feature_lens=lengths.to(tower.device))
        return out.last_hidden_state.split([item.meta["n_tokens"] for item in group])


class Qwen3OmniThinker(_qwen3.Qwen3DeepstackThinker):
    """The language model of Qwen3-Omni; a talker can follow.

    The talker gets token embeddings of text, and a middle layer's output of media. So hidden rows are [2 * H]: the last
    layer's, then that layer's.
    """

    def __init__(self, module: Any, checkpoint: Path, config: Any) -> None:
        super().__init__(module, checkpoint, ("image", "video", "audio"))
        self.speaks = bool(config.enable_audio_output)
        self._config = config
        self._layer = config.talker_config.accept_hidden_layer
        self._more = {"output_hidden_states": [self._layer - 1]} if self.speaks else {}

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [B, V] of [B, 2 * H]."""
        return super().logits(hidden[..., : self.width])

    @torch.no_grad()
    def talker_prompt(self, prefill: PrefillInputs, hidden: Tensor, voice: str) -> Tensor:
        """Return [S + 3, H]: users' input and the answer's start, then begin, end and pad of speech."""
        if prefill.spoken is None:
            raise errors.BadRequest(
                "this checkpoint cannot speak, because it has no talker, or its chat template begins answers in an "
                "unknown way; request text",
                param="modalities",
            )
        _qwen3_talker.speaker_code(self._config.talker_config, voice)
        places = prefill.spoken[0].to(self.device)
        rows = torch.where(
            prefill.media[places, None], hidden[places, self.width :], prefill.inputs[places, : self.width]
        )
        config = self._config
        marks = [config.tts_bos_token_id, config.tts_eos_token_id, config.tts_pad_token_id]
        return torch.cat([rows, self.embed(torch.tensor(marks, device=self.device))])

    def talker_row(self, inputs: Tensor, hidden: Tensor) -> Tensor:
        """Return the inputs [B, H] of one decode step unchanged."""
        return inputs

    def _backbone_hidden(self, out: Any) -> Tensor:
        hidden: Tensor = out.last_hidden_state
        return torch.cat([hidden, out.hidden_states[self._layer - 1]], dim=-1) if self.speaks else hidden

    def _row_count(self, meta: Mapping[str, Any]) -> int:
        if meta["modality"] != "audio":
            return super()._row_count(meta)
        frames = operator.index(meta["audio_len"])
        if frames < 1:
            raise ValueError("invalid length")
        return _audio_rows(frames, self._config.thinker_config.audio_config.n_window)

    def _count_positions(self, ids: Tensor, media: Sequence[Encoded]) -> tuple[Tensor, int]:
        return self._count_at_pace(ids, media, self._config.thinker_config.position_id_per_seconds)

    def _count_at_pace(self, ids: Tensor, media: Sequence[Encoded], pace: float) -> tuple[Tensor, int]:
        merge = self._config.thinker_config.vision_config.spatial_merge_size
        return _mrope.count_positions(ids, self._placeholders, media, merge, pace)

    def _talker_layout(self, layout: PromptLayout, media: Sequence[Encoded]) -> Tensor | None:
        """Return int32 [5, S]: for each row of the talker its place, 1 if it is of media, its positions."""
        if not self.speaks or layout.ids[-_PREFIX_TOKENS] != self._config.im_start_token_id:
            return None
        ids = torch.tensor(layout.ids)
        mask = self._talker_mask(ids)
        places = mask.nonzero()[:, 0]
        ids = ids[places]
        among = [item for item, start in zip(media, layout.starts, strict=True) if mask[start]]
        # A talker's configuration has a separate pace.
        positions, _ = self._count_at_pace(ids[None], among, self._config.talker_config.position_id_per_seconds)
        of_media = torch.isin(ids, torch.tensor(list(self._placeholders)))
        return torch.cat([torch.stack([places, of_media]), positions[:, 0]]).to(torch.int32)

    def _talker_mask(self, ids: Tensor) -> Tensor:
        """Return bool [T]: users' input, and the beginning of the answer."""
        places = torch.arange(len(ids))
        begins = torch.where(ids == self._config.im_start_token_id, places, -1).cummax(0).values.clamp(min=0)
        roles = ids[(begins + 1).clamp(max=len(ids) - 1)]
        return (roles == self._config.user_token_id) | (places >= len(ids) - _PREFIX_TOKENS)


@dataclass
class Qwen3OmniVocoder(LoadedComponent):
    """Code2Wav, see ``contract.Vocoder``. The voice is in the codes."""

    code2wav: Any
    talker: Any  # its configuration
    rate: int = SAMPLE_RATE_HERTZ

    def __post_init__(self) -> None:
        self._waves = RecordedCalls(self.code2wav, lambda _, frames: _code2wav.render_samples(self.code2wav, frames))

    @property
    def groups(self) -> int:
        """Number of codes of one frame."""
        return int(self.code2wav.config.num_quantizers)

    @property
    def samples_per_code(self) -> int:
        """Number of samples of one more frame; the first has fewer."""
        return _code2wav.per_frame(self.code2wav.config)

    def open(self, voice: str, seed: int) -> _code2wav.Code2WavVocoding:
        """Begin one waveform. It has no noise."""
        _qwen3_talker.speaker_code(self.talker, voice)
        return _code2wav.Code2WavVocoding(self.code2wav, self._waves)


class Qwen3OmniMoe(_omni.OmniFamily):
    """See ``contract.ModelFamily``."""

    name = "qwen3_omni_moe"
    library = "Qwen3OmniMoe"
    encoder = _qwen3.Qwen3DeepstackVisionEncoder

    def reader(self, checkpoint: Path, dtype: str = "float32") -> Qwen3OmniThinker:
        """See ``contract.ModelFamily``. Always raises ``Fatal``: other engines return only the last layer's rows."""
        raise errors.Fatal(
            "the talker of Qwen3-Omni needs a middle layer's output of its thinker, which other engines do not return; "
            "declare omnibus_engines:transformers for it"
        )

    def _make_audio_encoder(self, module: Any, features: Any, limits: media.MediaDecodeLimits) -> Qwen3OmniAudioEncoder:
        return Qwen3OmniAudioEncoder(module, features, limits)

    def _make_thinker(self, module: Any, checkpoint: Path, config: Any) -> Qwen3OmniThinker:
        return Qwen3OmniThinker(module, checkpoint, config)

    def _load_talker(self, config: Any, checkpoint: Path, device: str, dtype: str) -> Qwen3Talker:
        from transformers import Qwen3OmniMoeForConditionalGeneration as Whole

        # Only the library's whole model defines how experts are stored.
        drop = ["thinker", "code2wav"]
        module = loading.load_model(Whole, checkpoint, drop=drop, device=device, dtype=dtype, config=config)
        # The last frame is not decoded.
        rate = SAMPLE_RATE_HERTZ / _code2wav.per_frame(config.code2wav_config)
        return Qwen3Talker(module.talker, self._max_codes(checkpoint) - 1, rate)

    def _load_vocoder(self, config: Any, checkpoint: Path, device: str, dtype: str) -> Qwen3OmniVocoder:
        from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

        module = loading.load_model(
            Qwen3OmniMoeCode2Wav,
            checkpoint,
            device=device,
            dtype=dtype,
            config=config.code2wav_config,
            key_mapping=_CODE2WAV,
        )
        return Qwen3OmniVocoder(module, module, config.talker_config)


def _audio_rows(frames: int, n_window: int) -> int:
    """Return the rows of ``frames`` mel frames: three convolutions per window."""
    whole, left = divmod(frames, 2 * n_window)
    for _ in range(3):
        left = (left - 1) // 2 + 1
    return left + whole * 13


FAMILY = Qwen3OmniMoe()
