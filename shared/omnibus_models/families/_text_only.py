"""Language models that take only text."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omnibus_models import loading
from omnibus_models.contract import no_component
from omnibus_models.families import _language


class TextThinker(_language.SequentialThinker):
    """A language model without media."""

    def __init__(self, module: Any, checkpoint: Path, modalities: Sequence[str] = ()) -> None:
        super().__init__(module, checkpoint, modalities)

    def _convert_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        read = super()._convert_message(message)
        if isinstance(read["content"], str):
            return read
        # Templates of such models take only strings. Qwen3's silently drops a list.
        return {**read, "content": "\n".join(part["text"] for part in read["content"])}

    def _tokenize_text(self, text: str) -> list[int]:
        # The template has written the begin token, which the tokenizer must not double.
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


class TextFamily:
    """A family of one language model, see ``contract.ModelFamily``; ``cls`` is its library class."""

    components = ("thinker",)

    def __init__(self, name: str, cls: str) -> None:
        self.name = name
        self._cls = cls

    def load(self, component: str, checkpoint: Path, device: str = "cpu", dtype: str = "float32") -> TextThinker:
        """Load ``thinker``, the whole model."""
        if component != "thinker":
            raise no_component(self.name, self.components, component)
        return self._load_thinker(Path(checkpoint), [], device, dtype)

    def reader(self, checkpoint: Path, dtype: str = "float32") -> TextThinker:
        """See ``contract.ModelFamily``."""
        return self._load_thinker(Path(checkpoint), ["model.layers", "lm_head"], "cpu", dtype)

    def _load_thinker(self, checkpoint: Path, drop: Sequence[str], device: str, dtype: str) -> TextThinker:
        import transformers

        cls = getattr(transformers, self._cls)
        return TextThinker(loading.load_model(cls, checkpoint, drop=drop, device=device, dtype=dtype), checkpoint)
