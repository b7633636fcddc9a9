"""Language models of transformers with encoders of images, videos or audio, without code for their class.

The checkpoint's processor prepares media, the model's own ``get_*_features`` encodes them, and its own ``forward``
prepares prompts. Each component loads only the modules that it uses, which a small random copy shows. A class is served
only after that copy has given equal logits apart and whole, see ``omnibus_llm.engine.media_admission``.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from omnibus import errors
from omnibus.checkpoints.gguf_header import is_gguf
from omnibus_models import loading, media
from omnibus_models.contract import Encoded, PrefillInputs, PromptLayout, TokenizedPrompt, no_component
from omnibus_models.families import _gguf_images, _language, _media_parts, _media_rows
from omnibus_models.families._item_processor import ItemProcessor, PromptFrame, count_tokens, expand_runs
from omnibus_models.families._own_encoder import OwnEncoder
from omnibus_models.families._own_prompt import OwnPrompts
from omnibus_models.families._whole_model import MediaPreparer, WholeDecoder, WholePrompts
from omnibus_models.families.causal_lm import OwnDecoder, find_backbone, find_head

#: A chat whose processor writes the rest of the prompt itself: media before texts.
_PLAIN_TEMPLATE = """
{%- for message in messages -%}
    {%- if not loop.first %}{{ "\n" }}{% endif -%}
    {%- for part in message.content if part.type != "text" -%}{{ marks[part.type] }}{%- endfor -%}
    {%- for part in message.content if part.type == "text" -%}{{ part.text }}{%- endfor -%}
{%- endfor -%}"""
#: Types whose tokens differ in vLLM 0.32 for prompts with images.
_OTHER_TOKENS = frozenset({"cohere2_vision"})


class OwnThinker(_language.SequentialThinker, OwnDecoder):
    """The language model, see ``contract.Thinker``. ``module`` is the whole model without its encoders."""

    #: Modalities of which a prompt may have one item.
    alone: frozenset[str] = frozenset()
    prompts = OwnPrompts

    def __init__(self, module: Any, checkpoint: Path, processor: ItemProcessor, modalities: Sequence[str]) -> None:
        self.checkpoint = checkpoint
        self.processor = processor
        super().__init__(module, checkpoint, modalities)
        self._prompts = self.prompts(self, processor)
        if processor.frame != PromptFrame("", ""):  # such checkpoints have no template
            marks = {kind: text for kind, (text, _) in processor.placeholders.items()}
            self._template = self._template or f"{{% set marks = {marks!r} %}}{_PLAIN_TEMPLATE}"

    def _find_backbone(self, module: Any) -> Any:
        return find_backbone(module)

    def _find_head(self, module: Any) -> Any:
        return find_head(module, by_ids=True)

    def _placeholder_id(self, modality: str) -> int:
        return self.processor.placeholders[modality][1]

    def _tokenize_text(self, text: str) -> list[int]:
        begins = self.processor.frame.lead and text.startswith(self.processor.frame.mark)
        if self.processor.adds_marks and not begins:
            return super()._tokenize_text(text)
        return self.processor.tokenize(text)

    def _frame_placeholders(self, text: str) -> str:
        frame, text = self.processor.frame, self.processor.write_once(text)
        return text if frame.mark not in text else frame.write(text)

    def _expand_placeholder(self, token: int, item: Encoded) -> list[int]:
        return expand_runs(item.meta["expansion"]["input_ids"])

    def _check_item(self, item: Encoded) -> None:
        try:
            shape = (self._row_count(item.meta), _media_rows.form_width(item.meta["form"]))
            runs = item.meta["expansion"]["input_ids"]
            self._check_context(count_tokens(runs).total())  # before any of it is made
            expand_runs(runs)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            raise errors.BadRequest("the meta data of a media item cannot be used", param="items") from None
        if tuple(item.embeds.shape) != shape:
            raise errors.BadRequest(
                f"an item must have an embedding of shape {shape} by its meta data, not {tuple(item.embeds.shape)}",
                param="items",
            )

    def layout(self, prompt: TokenizedPrompt, media: Sequence[Encoded]) -> PromptLayout:
        """See ``contract.Reader``. The model itself computes the positions."""
        layout = self._expand_layout(prompt, media)
        prefill = self._assemble_layout(layout, media)
        return dataclasses.replace(layout, positions=prefill.positions.cpu(), delta=prefill.delta)

    def _expand_layout(self, prompt: TokenizedPrompt, media: Sequence[Encoded]) -> PromptLayout:
        layout = super().layout(prompt, media)
        return dataclasses.replace(layout, media=self._find_rows(layout, media)) if media else layout

    def _find_rows(self, layout: PromptLayout, media: Sequence[Encoded]) -> Tensor:
        """Return which tokens of ``layout`` are rows of ``media``, [T] bool."""
        places = torch.zeros(len(layout.ids), dtype=torch.bool)
        for start, item in zip(layout.starts, media, strict=True):
            ids = expand_runs(item.meta["expansion"]["input_ids"])
            token = self.processor.find_row_token(item.meta["modality"], item)
            places[start : start + len(ids)] = torch.tensor([each == token for each in ids])
        return places

    def assemble_prefill(self, prompt: TokenizedPrompt, media: Sequence[Encoded]) -> PrefillInputs:
        """Let the model itself place the rows of ``media``, see ``contract.Reader``."""
        for kind in self.alone:
            if prompt.modalities.count(kind) > 1:
                raise errors.BadRequest(f"this model takes one {kind} in a prompt, not several", param="messages")
        return self._assemble_layout(self._expand_layout(prompt, media), media)

    def _assemble_layout(self, layout: PromptLayout, media: Sequence[Encoded]) -> PrefillInputs:
        try:
            return self._prompts.assemble_prefill(layout.ids, layout.starts, media, layout.media)
        except (IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise errors.BadRequest(
                f"this model does not take these media in one prompt: {reason}", param="items"
            ) from error


class WholeThinker(WholeDecoder, OwnThinker):
    """A whole model, see ``contract.Thinker``."""

    prompts = WholePrompts

    def _find_head(self, module: Any) -> nn.Identity:
        return nn.Identity()


class MultimodalFamily:
    """See ``contract.ModelFamily``. ``encoder`` is the name of the component with all encoders."""

    def __init__(self, name: str = "multimodal_lm", encoder: str = "encoder") -> None:
        self.name = name
        self.components: tuple[str, ...] = (encoder, "thinker")

    def load(
        self,
        component: str,
        checkpoint: Path,
        device: str = "cpu",
        dtype: str = "float32",
        limits: media.MediaDecodeLimits = media.DEFAULT,
    ) -> Any:
        """Load the encoder or ``thinker`` alone. ``limits`` apply to the media of the encoder.

        Raises ``Fatal`` for a class that does not come apart.
        """
        if component not in self.components:
            raise no_component(self.name, self.components, component)
        checkpoint = Path(checkpoint)
        if is_gguf(checkpoint):
            load = _gguf_images.load_encoder if component != "thinker" else _gguf_images.describe_thinker
            return load(checkpoint, device, limits)
        parts = _media_parts.load_parts(checkpoint)
        processor = ItemProcessor.load(checkpoint)
        if component == "thinker":
            module = _load_module(checkpoint, parts.encoders, device, dtype)
            thinker = WholeThinker if parts.whole else OwnThinker
            return thinker(module, checkpoint, processor, parts.modalities)
        if parts.whole:
            return MediaPreparer(processor, limits)
        module = _load_module(checkpoint, parts.language, device, dtype)
        return OwnEncoder(module, processor, limits, parts.batched, parts.inverted)

    def reader(self, checkpoint: Path, dtype: str = "float32") -> Any:
        """See ``contract.ModelFamily``. It takes the modalities that other engines can place.

        Raises ``Fatal`` if there is none, or if their answers are known to differ.
        """
        checkpoint = Path(checkpoint)
        _, config = _media_parts.find_class(checkpoint)
        if config.model_type in _OTHER_TOKENS:
            raise errors.Fatal(
                f"vLLM gives other tokens than transformers for {config.model_type}; "
                "declare omnibus_engines:transformers for it"
            )
        parts = _media_parts.load_parts(checkpoint)
        if not parts.portable:
            raise errors.Fatal(
                "only this model's own class of transformers can prepare its prompts with media; "
                "declare omnibus_engines:transformers for it"
            )
        module = _load_module(checkpoint, parts.layers, "cpu", dtype)
        return OwnThinker(module, checkpoint, ItemProcessor.load(checkpoint), parts.portable)


def _load_module(checkpoint: Path, drop: Sequence[str], device: str, dtype: str) -> Any:
    cls, config = _media_parts.find_class(checkpoint)
    kernels = {"attn_implementation": _media_parts.load_parts(checkpoint).attention}
    return loading.load_model(cls, checkpoint, drop=drop, device=device, dtype=dtype, config=config, **kernels)


FAMILY = MultimodalFamily()
