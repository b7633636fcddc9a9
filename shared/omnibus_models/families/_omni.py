"""Base of the Omni families: loads each of their five components alone."""

import importlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from omnibus_models import loading, media
from omnibus_models.contract import no_component
from omnibus_models.families import _qwen

_VISION_MODULES, _AUDIO_MODULES, _LANGUAGE_MODULES = ("visual",), ("audio_tower",), ("model", "lm_head")


class OmniFamily(ABC):
    """See ``contract.ModelFamily``. ``library`` is the prefix of its class names in the library."""

    name: ClassVar[str]
    library: ClassVar[str]
    components = ("vision", "audio", "thinker", "talker", "vocoder")
    encoder: ClassVar[type[_qwen.QwenVisionEncoder]] = _qwen.QwenVisionEncoder

    def load(
        self,
        component: str,
        checkpoint: Path,
        device: str = "cpu",
        dtype: str = "float32",
        limits: media.MediaDecodeLimits = media.DEFAULT,
    ) -> Any:
        """Load one component alone. ``limits`` apply to the media of ``vision`` and ``audio``."""
        checkpoint = Path(checkpoint)
        config = self._load_config(checkpoint)
        match component:
            case "vision":
                module = self._load_part(config, checkpoint, (*_AUDIO_MODULES, *_LANGUAGE_MODULES), device, dtype)
                return _qwen.vision_encoder(module, checkpoint, limits, self._video_options(), self.encoder)
            case "audio":
                from transformers import AutoFeatureExtractor

                module = self._load_part(config, checkpoint, (*_VISION_MODULES, *_LANGUAGE_MODULES), device, dtype)
                features = AutoFeatureExtractor.from_pretrained(checkpoint, local_files_only=True)
                return self._make_audio_encoder(module, features, limits)
            case "thinker":
                return self._make_thinker(
                    self._load_part(config, checkpoint, (*_VISION_MODULES, *_AUDIO_MODULES), device, dtype),
                    checkpoint,
                    config,
                )
            case "talker":
                return self._load_talker(config, checkpoint, device, dtype)
            case "vocoder":
                return self._load_vocoder(config, checkpoint, device, dtype)
        raise no_component(self.name, self.components, component)

    # Differences between families

    @abstractmethod
    def _make_audio_encoder(self, module: Any, features: Any, limits: media.MediaDecodeLimits) -> Any:
        """Return the audio encoder of a loaded module; ``features`` is the library's extractor."""

    @abstractmethod
    def _make_thinker(self, module: Any, checkpoint: Path, config: Any) -> Any:
        """Return the language model of a loaded module."""

    @abstractmethod
    def _load_talker(self, config: Any, checkpoint: Path, device: str, dtype: str) -> Any:
        """Load the talker."""

    @abstractmethod
    def _load_vocoder(self, config: Any, checkpoint: Path, device: str, dtype: str) -> Any:
        """Load the vocoder."""

    # Common parts

    def _load_config(self, checkpoint: Path) -> Any:
        """Return the configuration of the whole model."""
        return self._library_class("Config").from_pretrained(checkpoint, local_files_only=True)

    def _load_part(self, config: Any, checkpoint: Path, drop: Sequence[str], device: str, dtype: str) -> Any:
        """Load the library's thinker, which has the encoders, without modules in ``drop``."""
        cls = self._library_class("ThinkerForConditionalGeneration")
        return loading.load_model(cls, checkpoint, drop=drop, device=device, dtype=dtype, config=config.thinker_config)

    def _max_codes(self, checkpoint: Path) -> int:
        """Return ``talker_max_new_tokens`` of the checkpoint, or the library's default."""
        path = Path(checkpoint) / "generation_config.json"
        settings = json.loads(path.read_text()) if path.exists() else {}
        generate = inspect.signature(self._library_class("ForConditionalGeneration").generate)
        return int(settings.get("talker_max_new_tokens", generate.parameters["talker_max_new_tokens"].default))

    def _video_options(self) -> dict[str, Any]:
        # The joint processor overrides the video processor's own size with this one.
        processing = importlib.import_module(f"transformers.models.{self.name}.processing_{self.name}")
        defaults = getattr(processing, f"{self.library}ProcessorKwargs")._defaults
        return {"size": defaults["videos_kwargs"]["size"]}

    def _library_class(self, name: str) -> Any:
        import transformers

        return getattr(transformers, self.library + name)
