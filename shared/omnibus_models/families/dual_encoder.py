"""Encoders of texts and images to one space: any class with ``get_text_features`` and ``get_image_features``.

CLIP, SigLIP, ALIGN and others need no separate code. A class is served only after a tiny copy of it has given equal
vectors apart and whole, see ``_dual_towers``.
"""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from omnibus import errors
from omnibus_models import loading, media
from omnibus_models.contract import Encoded, LoadedComponent, Prepared, no_component
from omnibus_models.families import _dual_towers
from omnibus_models.families._dual_towers import ImageProcessor, embed_inputs
from omnibus_models.families._own_encoder import OwnEncoder
from omnibus_models.families._text_encoder import Features, TokenBatches


class ImageTower(OwnEncoder):
    """See ``contract.MediaEncoder``.

    An image has one row, its vector of length 1. Its tokens are the positions of the tower.
    """

    def _encode_group(self, items: Sequence[Prepared]) -> list[Encoded]:
        encode = self._encoders["image"]
        names = inspect.signature(encode).parameters
        features = {name: self._join_features(name, items) for name in items[0].features if name in names}
        vectors, positions = embed_inputs(encode, features)
        return [
            Encoded(vector[None], {**item.meta, "n_tokens": positions})
            for item, vector in zip(items, vectors, strict=True)
        ]


class _TextFeatures(nn.Module):
    """The text tower as a module with ``pooler_output``, for ``TokenBatches``."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module
        self.config: Any = getattr(module.config, "text_config", module.config)
        self.device: torch.device = module.device
        self.forward = module.get_text_features

    def get_input_embeddings(self) -> Any:
        return self.module.text_model.get_input_embeddings()


class _TextBatches(TokenBatches):
    """Texts with the padding of the processor, if the tower ``reads_padding``."""

    def __init__(self, module: Any, checkpoint: Path, reads_padding: bool) -> None:
        super().__init__(_TextFeatures(module), checkpoint)
        self._masks = "attention_mask" in self.tokenizer.model_input_names
        self._padding_ignored = not reads_padding
        self._length = 0
        if reads_padding:
            self.context = self._length = min(self.context, _default_length(checkpoint) or self.context)

    def pad_text(self, features: Features) -> Features:
        """Return the inputs [T] of a text, padded as in training."""
        if not self._length:
            return features
        encoding: Mapping[str, Any] = self.tokenizer.pad(
            {name: value.tolist() for name, value in features.items()},
            padding="max_length",
            max_length=self._length,
            return_attention_mask=self._masks,
        )
        return {name: torch.tensor(value) for name, value in encoding.items()}

    def run(self, batch: Sequence[Features], output: str) -> list[Tensor]:
        """See ``TokenBatches.run``; texts of one length have their own mask."""
        if not self._length:
            return super().run(batch, output)
        inputs = {name: torch.stack([text[name] for text in batch]).to(self.module.device) for name in batch[0]}
        return list(getattr(self.module(**inputs), output))


def _default_length(checkpoint: Path) -> int | None:
    """Return the length to which the processor pads texts, if any."""
    processor = _dual_towers.load_processor(checkpoint)
    options = processor._merge_kwargs(
        processor.valid_processor_kwargs, tokenizer_init_kwargs=processor.tokenizer.init_kwargs
    )["text_kwargs"]
    return options.get("max_length") if options.get("padding") == "max_length" else None


class TextTower(LoadedComponent):
    """See ``contract.TextEmbedder``. Vectors have length 1."""

    def __init__(self, module: Any, checkpoint: Path, reads_padding: bool) -> None:
        super().__init__(module)
        self._batches = _TextBatches(module, checkpoint, reads_padding)

    def prepare_text(self, text: str | Sequence[int], prompt_name: str | None = None) -> Prepared:
        """Tokenise a text, or check its tokens."""
        if prompt_name is not None:
            raise errors.BadRequest("this model has no prompts: write the prompt into the text", param="prompt_name")
        batches = self._batches
        features = batches.tokenize("text", text) if isinstance(text, str) else batches.check_ids(text, "text")
        return Prepared("text", batches.pad_text(features), {"n_tokens": len(features["input_ids"])})

    @torch.no_grad()
    def embed(self, batch: Sequence[Prepared]) -> list[Tensor]:
        """Run one forward pass."""
        vectors = self._batches.run([text.features for text in batch], "pooler_output")
        vectors = [vector if vector.dim() == 1 else vector[0] for vector in vectors]  # see ``embed_inputs``
        return [nn.functional.normalize(vector.float(), dim=-1) for vector in vectors]


class DualEncoderFamily:
    """See ``contract.ModelFamily``."""

    name = "dual_encoder"
    components = ("vision", "embedder")

    def load(self, component: str, checkpoint: Path, device: str = "cpu", dtype: str = "float32") -> Any:
        """Load ``vision``, the image tower, or ``embedder``, the text tower."""
        if component not in self.components:
            raise no_component(self.name, self.components, component)
        checkpoint = Path(checkpoint)
        towers, (cls, _) = _dual_towers.load_towers(checkpoint), _dual_towers.find_class(checkpoint)
        is_text = component == "embedder"
        module: Any = loading.load_model(
            cls,
            checkpoint,
            drop=towers.vision if is_text else towers.text,
            device=device,
            dtype=dtype,
            attn_implementation=towers.text_attention if is_text else towers.image_attention,
        )
        if is_text:
            return TextTower(module, checkpoint, towers.reads_padding)
        processor = ImageProcessor(_dual_towers.load_processor(checkpoint))
        return ImageTower(module, processor, media.DEFAULT, ["image"] if towers.batched else ())

    def reader(self, checkpoint: Path, dtype: str = "float32") -> Any:
        """This family has no language model: always ``NotFound``."""
        raise no_component(self.name, self.components, "thinker")


FAMILY = DualEncoderFamily()
