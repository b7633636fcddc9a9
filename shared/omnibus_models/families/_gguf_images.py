"""Images of language models in GGUF files: the encoder is a projector next to the file, on llama.cpp."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from omnibus import errors
from omnibus.checkpoints.gguf_header import find_projector, read_gguf_header, read_projector_type
from omnibus_models import loading, media
from omnibus_models.contract import Encoded, LoadedComponent, Prepared
from omnibus_models.families.causal_lm import CausalFamily
from omnibus_models.llama_cpp.clip_projector import ClipProjector
from omnibus_models.llama_cpp.projector import ImageProjector, count_parameters


class GgufImageEncoder(LoadedComponent):
    """See ``contract.MediaEncoder``. Rows of images are those of ``ImageProjector``."""

    modalities: ClassVar[frozenset[str]] = frozenset({"image"})

    def __init__(
        self, projector: ImageProjector | ClipProjector, parameters: int, limits: media.MediaDecodeLimits
    ) -> None:
        super().__init__(nn.Module())
        self._projector, self._parameters, self._limits = projector, parameters, limits

    @property
    def parameters(self) -> int:
        return self._parameters

    def prepare(self, data: memoryview, modality: str, alone: bool = True) -> Prepared:
        """Decode an image. The library resizes it."""
        pixels = np.array(media.decode_image(data, self._limits))
        return Prepared(
            modality, {"pixels": torch.from_numpy(pixels)}, {"n_tokens": self._projector.count_rows(pixels)}
        )

    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Encode images one after another."""
        rows = [self._projector.encode_image(item.features["pixels"].numpy()) for item in batch]
        return [Encoded(torch.from_numpy(each), item.meta) for each, item in zip(rows, batch, strict=True)]


def load_encoder(checkpoint: Path, device: str, limits: media.MediaDecodeLimits) -> GgufImageEncoder:
    """Load the projector next to ``checkpoint``. Raises ``BadRequest`` without one that fits, and for a GPU."""
    file = require_projector(checkpoint)
    if device != "cpu":
        raise errors.BadRequest(f"projectors run on the CPU, not on {device!r}: set the device to cpu")
    is_llava = read_projector_type(read_gguf_header(file)) == "mlp"
    projector = ClipProjector(file) if is_llava else ImageProjector(file, checkpoint, torch.get_num_threads())
    return GgufImageEncoder(projector, count_parameters(file), limits)


def require_projector(checkpoint: Path) -> Path:
    """Return the projector of ``checkpoint``. Raises ``BadRequest`` without one that fits."""
    file = find_projector(checkpoint)
    if file is None:
        raise errors.BadRequest(
            f"no projector (mmproj*.gguf) that fits is next to {checkpoint}: put the model's one there, or declare "
            "causal_lm for texts"
        )
    return file


def describe_thinker(checkpoint: Path, device: str, _: media.MediaDecodeLimits) -> Any:
    """Return the language model if it is only examined. Raises ``BadRequest`` otherwise: llama.cpp runs it."""
    require_projector(checkpoint)
    if loading.stand_in.get() is None:
        raise errors.BadRequest(
            f"images of {checkpoint.name} need omnibus_engines:llama_cpp on a CPU (`--device cpu`); for texts alone, "
            "move its projector (mmproj) to another directory"
        )
    return CausalFamily().load("thinker", checkpoint, device)
