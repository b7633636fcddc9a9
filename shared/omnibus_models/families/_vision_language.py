"""Base of families with a vision encoder and a language model."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from omnibus_models import loading, media
from omnibus_models.contract import no_component

#: All except the vision encoder, in most models of the library.
LANGUAGE_MODULES = ("model.language_model", "lm_head")


class VisionLanguage(ABC):
    """See ``contract.ModelFamily``."""

    name: ClassVar[str]
    #: The whole model's class in the library.
    architecture: ClassVar[str]
    #: Modules that the language model does not need, and those that the vision encoder does not need.
    eyes: ClassVar[Sequence[str]]
    mind: ClassVar[Sequence[str]] = LANGUAGE_MODULES
    components = ("vision", "thinker")

    def load(
        self,
        component: str,
        checkpoint: Path,
        device: str = "cpu",
        dtype: str = "float32",
        limits: media.MediaDecodeLimits = media.DEFAULT,
    ) -> Any:
        """Load ``vision`` or ``thinker`` alone. ``limits`` apply to the media of ``vision``."""
        checkpoint = Path(checkpoint)
        match component:
            case "vision":
                return self._make_vision_encoder(
                    self._load_module(checkpoint, self.mind, device, dtype), checkpoint, limits
                )
            case "thinker":
                return self._make_thinker(self._load_module(checkpoint, self.eyes, device, dtype), checkpoint)
        raise no_component(self.name, self.components, component)

    def reader(self, checkpoint: Path, dtype: str = "float32") -> Any:
        """See ``contract.ModelFamily``."""
        checkpoint = Path(checkpoint)
        drop = (*self.eyes, "model.language_model.layers", "lm_head")
        return self._make_thinker(self._load_module(checkpoint, drop, "cpu", dtype), checkpoint)

    @abstractmethod
    def _make_vision_encoder(self, module: Any, checkpoint: Path, limits: media.MediaDecodeLimits) -> Any:
        """Return the vision encoder of a loaded module."""

    @abstractmethod
    def _make_thinker(self, module: Any, checkpoint: Path) -> Any:
        """Return the language model of a loaded module."""

    def _load_module(self, checkpoint: Path, drop: Sequence[str], device: str, dtype: str) -> Any:
        import transformers

        cls = getattr(transformers, self.architecture)
        return loading.load_model(cls, checkpoint, drop=drop, device=device, dtype=dtype)
