"""Language models of transformers with encoders of images, videos or audio, without code for their class.

The checkpoint's processor prepares media, the model's own ``get_*_features`` encodes them, and its own ``forward``
prepares prompts. Each component loads only the modules that it uses, which a small random copy shows. A class is served
only after that copy has given equal logits apart and whole, see ``omnibus_llm.engine.media_admission``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from omnibus import errors
from omnibus_models import loading, media
from omnibus_models.contract import Encoded, PrefillInputs, TokenizedPrompt, no_component
from omnibus_models.families import _llava_style, _media_parts, _media_rows
from omnibus_models.families._item_processor import ItemProcessor, expand_runs
from omnibus_models.families._own_encoder import OwnEncoder
from omnibus_models.families._own_prompt import OwnPrompts
from omnibus_models.families._whole_model import MediaPreparer, WholeDecoder, WholePrompts
from omnibus_models.families.causal_lm import OwnDecoder, OwnHead, find_backbone


class OwnThinker(_llava_style.SequentialThinker, OwnDecoder):
    """The language model, see ``contract.Thinker``. ``module`` is the whole model without its encoders."""

    #: Modalities of which a prompt may have one item.
    alone: frozenset[str] = frozenset()
    prompts = OwnPrompts

    def __init__(self, module: Any, checkpoint: Path, processor: ItemProcessor, modalities: Sequence[str]) -> None:
        self.checkpoint = checkpoint
        self.processor = processor
        super().__init__(module, checkpoint, modalities)
        self._prompts = self.prompts(self, processor)

    def _find_backbone(self, module: Any) -> Any:
        return find_backbone(module)

    def _find_head(self, module: Any) -> Any:
        return OwnHead(module, by_ids=True)

    def _placeholder_id(self, modality: str) -> int:
        return self.processor.placeholders[modality][1]

    def _tokenize_text(self, text: str) -> list[int]:
        if self.processor.adds_marks:
            return super()._tokenize_text(text)
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _expand_placeholder(self, token: int, item: Encoded) -> list[int]:
        return expand_runs(item.meta["expansion"]["input_ids"])

    def _check_item(self, item: Encoded) -> None:
        try:
            shape = (self._row_count(item.meta), _media_rows.form_width(item.meta["form"]))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            raise errors.BadRequest("the meta data of a media item cannot be used", param="items") from None
        if tuple(item.embeds.shape) != shape:
            raise errors.BadRequest(
                f"an item must have an embedding of shape {shape} by its meta data, not {tuple(item.embeds.shape)}",
                param="items",
            )

    def assemble_prefill(self, prompt: TokenizedPrompt, media: Sequence[Encoded]) -> PrefillInputs:
        """Let the model itself place the rows of ``media``, see ``contract.Reader``."""
        for kind in self.alone:
            if prompt.modalities.count(kind) > 1:
                raise errors.BadRequest(f"this model takes one {kind} in a prompt, not several", param="messages")
        try:
            layout = self.layout(prompt, media)
            return self._prompts.assemble_prefill(layout.ids, layout.starts, media, layout.media)
        except (IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise errors.BadRequest(f"this model does not take these media in one prompt: {reason}") from error


class WholeThinker(WholeDecoder, OwnThinker):
    """A whole model, see ``contract.Thinker``."""

    prompts = WholePrompts

    def _find_head(self, module: Any) -> nn.Identity:
        return nn.Identity()


class MultimodalFamily:
    """See ``contract.ModelFamily``."""

    name = "multimodal_lm"
    components = ("encoder", "thinker")

    def load(
        self,
        component: str,
        checkpoint: Path,
        device: str = "cpu",
        dtype: str = "float32",
        limits: media.MediaDecodeLimits = media.DEFAULT,
    ) -> Any:
        """Load ``encoder`` or ``thinker`` alone. ``limits`` apply to the media of ``encoder``.

        Raises ``Fatal`` for a class that does not come apart.
        """
        if component not in self.components:
            raise no_component(self.name, self.components, component)
        checkpoint = Path(checkpoint)
        cls, _ = _media_parts.find_class(checkpoint)
        processor = ItemProcessor.load(checkpoint)
        parts = _media_parts.load_parts(checkpoint)
        kernels = {"attn_implementation": parts.attention}
        if parts.whole and component == "encoder":
            return MediaPreparer(processor, limits)
        drop = parts.language if component == "encoder" else parts.encoders
        module = loading.load_model(cls, checkpoint, drop=drop, device=device, dtype=dtype, **kernels)
        if component == "encoder":
            return OwnEncoder(module, processor, limits, parts.inverted)
        thinker = WholeThinker if parts.whole else OwnThinker
        return thinker(module, checkpoint, processor, parts.modalities)

    def reader(self, checkpoint: Path, dtype: str = "float32") -> Any:
        """See ``contract.ModelFamily``. Always raises ``Fatal``: other engines prepare prompts in their own way."""
        raise errors.Fatal(
            "prompts of this model are prepared by its own class of transformers; "
            "declare omnibus_engines:transformers for it"
        )


FAMILY = MultimodalFamily()
