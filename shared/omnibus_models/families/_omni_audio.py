"""Base of the Omni families: audio as the input of their encoders, and voices."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from omnibus import errors
from omnibus_models import media
from omnibus_models.contract import Encoded, LoadedComponent, Prepared


@dataclass
class TowerAudioEncoder(LoadedComponent, ABC):
    """Audio through an audio tower, see ``contract.MediaEncoder``."""

    features: Any  # the library's feature extractor
    limits: media.MediaDecodeLimits

    modalities = frozenset({"audio"})
    padding: ClassVar[Any]  # the extractor's option in the joint processor
    least: ClassVar[int] = 0  # samples that the extractor needs

    @abstractmethod
    def row_count(self, frames: int) -> int:
        """Return the rows of ``frames`` mel frames."""

    @abstractmethod
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """See ``contract.MediaEncoder``."""

    def prepare(self, data: memoryview, modality: str) -> Prepared:
        """Decode one file and compute unpadded log-mel ``features`` [bands, frames]."""
        if modality != "audio":
            raise errors.BadRequest(f"this encoder takes audio, not {modality}")
        rate = self.features.sampling_rate
        samples = media.decode_audio(data, self.limits, rate)
        if len(samples) < self.least:
            raise _too_short()
        out = self.features(
            samples,
            sampling_rate=rate,
            padding=self.padding,
            truncation=False,
            return_attention_mask=True,
            return_tensors="pt",
        )
        frames = int(out["attention_mask"].sum())
        count = self.row_count(frames)
        if count < 1:
            raise _too_short()
        meta = {"modality": "audio", "n_tokens": count, "audio_len": frames}
        return Prepared("audio", {"features": out["input_features"][0, :, :frames]}, meta)


def _too_short() -> errors.BadMedia:
    return errors.BadMedia("the audio is shorter than 30 ms")


def require_voice(voice: str, voices: Mapping[str, Any]) -> None:
    """Raise ``BadRequest`` with the ``voices`` voices if ``voice`` is unknown."""
    if voice not in voices:
        raise errors.BadRequest(f"unknown voice {voice!r}; known: {', '.join(sorted(voices))}", param="voice")
