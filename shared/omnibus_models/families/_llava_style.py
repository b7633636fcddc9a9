"""Base of families with plain positions: a vision tower with a projector, and any language model.

The joint processor determines the tiles of an image and its number of rows. The checkpoint names the language model
(Llama, Qwen2, Mistral), in which every layer must attend to all positions before.
"""

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from PIL import Image
from torch import Tensor

from omnibus import errors
from omnibus_models import media
from omnibus_models.contract import Encoded, LoadedComponent, Prepared
from omnibus_models.families import _language
from omnibus_models.families._vision_language import VisionLanguage
from omnibus_models.frame_sampling import FrameSampling
from omnibus_models.limits import MAX_ASPECT_RATIO

#: Length of a cropped line in short sides: far more than a resampling filter reads beyond the square.
_CROPPED_SIDES = 16


class SequentialThinker(_language.LanguageThinker):
    """A language model whose positions are 0 .. T-1, with or without media."""

    def _count_positions(self, ids: Tensor, media: Sequence[Encoded]) -> tuple[Tensor, int]:
        return torch.arange(ids.shape[1])[None, None], 0

    def _row_count(self, meta: Mapping[str, Any]) -> int:
        rows = operator.index(meta["n_tokens"])
        if rows < 1:
            raise ValueError("an item without rows")
        return rows

    def _convert_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        # Templates of these families read only parts, and would silently drop a plain string.
        converted_message = super()._convert_message(message)
        if isinstance(converted_message["content"], str) and converted_message["role"] != "tool":
            converted_message["content"] = [{"type": "text", "text": converted_message["content"]}]
        return converted_message


class TowerVisionEncoder(LoadedComponent):
    """Images, and videos as rows of images, through a tower and projector.

    See ``contract.MediaEncoder``. A prepared item is ``tiles`` [n, 3, height, width] of the joint processor.
    """

    modalities: frozenset[str]
    #: See ``FrameSampling``.
    frame_place: ClassVar[Literal["starts", "middles"]] = "starts"

    def __init__(
        self, module: Any, checkpoint: Path, modalities: Sequence[str], limits: media.MediaDecodeLimits
    ) -> None:
        from transformers import AutoProcessor

        super().__init__(module)
        processor = AutoProcessor.from_pretrained(checkpoint, local_files_only=True)
        options = processor._merge_kwargs(
            processor.valid_processor_kwargs, tokenizer_init_kwargs=processor.tokenizer.init_kwargs, return_tensors="pt"
        )
        self.modalities = frozenset(modalities)
        self._processor: Any = processor
        self._image_options: dict[str, Any] = options["images_kwargs"]
        self._video_options: dict[str, Any] = {**options["videos_kwargs"], "do_sample_frames": False}
        self._limits = limits

    def prepare(self, data: memoryview, modality: str, alone: bool = True) -> Prepared:
        """Decode and preprocess one file, see ``contract.MediaEncoder``."""
        if modality not in self.modalities:
            modality_names = " and ".join(sorted(self.modalities))
            raise errors.BadRequest(f"this encoder takes {modality_names}, not {modality}")
        if modality == "image":
            return self._prepare_image(media.decode_image(data, self._limits), alone)
        sampling = FrameSampling.of_processor(self._processor.video_processor, place=self.frame_place)
        return self._prepare_video(media.decode_video(data, self._limits, sampling))

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Run one forward pass for each modality.

        Attention stays within a tile, so a batch equals its single items.
        """
        rows: dict[int, Tensor] = {}
        for modality, run in (("image", self._encode_images), ("video", self._encode_videos)):
            places = [place for place, item in enumerate(batch) if item.modality == modality]
            if places:
                rows.update(zip(places, run([batch[place] for place in places]), strict=True))
        return [Encoded(rows[place], item.meta) for place, item in enumerate(batch)]

    # Differences between families

    def _prepare_image(self, picture: Any, alone: bool) -> Prepared:
        if self._image_options.get("do_center_crop") and max(picture.size) > MAX_ASPECT_RATIO * min(picture.size):
            picture = _crop_middle(picture)
        features, [text] = self._processor._process_images([picture], **self._image_options)
        return self._make_prepared("image", text, {"tiles": features["pixel_values"]})

    def _prepare_video(self, clip: media.Clip) -> Prepared:
        features, [text] = self._processor._process_videos([clip.frames], **self._video_options)
        frames = features["pixel_values_videos"][0]
        return self._make_prepared("video", text, {"tiles": frames}, frames=len(frames))

    def _encode_images(self, batch: Sequence[Prepared]) -> Sequence[Tensor]:
        return self._encode_tiles(batch)

    def _encode_videos(self, batch: Sequence[Prepared]) -> Sequence[Tensor]:
        return self._encode_tiles(batch)

    # Common parts

    def _encode_tiles(self, batch: Sequence[Prepared]) -> list[Tensor]:
        """Return [n_tokens, H] for each item: the concatenated rows of its tiles."""
        module: Any = self.module
        rows = module.get_image_features(self._stack_tiles(batch), return_dict=True).pooler_output
        encoded_items, begin = [], 0
        for item in batch:
            end = begin + len(item.features["tiles"])
            encoded_items.append(torch.cat(list(rows[begin:end])))
            begin = end
        return encoded_items

    def _stack_tiles(self, batch: Sequence[Prepared]) -> Tensor:
        """Return the tiles of all items, [n, 3, height, width]."""
        module: Any = self.module
        return torch.cat([item.features["tiles"] for item in batch]).to(module.device)

    def _make_prepared(self, modality: str, text: str, features: Mapping[str, Tensor], **more: Any) -> Prepared:
        """Return an item that ``text`` represents in a prompt."""
        names = {name for kind in self.modalities if (name := getattr(self._processor, f"{kind}_token", None))}
        count = sum(text.count(name) for name in names)
        return Prepared(modality, features, {"modality": modality, "n_tokens": count, **more})


def _crop_middle(line: Image.Image) -> Image.Image:
    """Return the middle of a ``line``: the library would enlarge it all."""
    reach = [min(side, _CROPPED_SIDES * min(line.size)) for side in line.size]
    left, top = ((side - length) // 2 for side, length in zip(line.size, reach, strict=True))
    return line.crop((left, top, left + reach[0], top + reach[1]))


class TilingEncoder(TowerVisionEncoder):
    """An image as a small one, and in tiles by aspect ratio.

    ``size`` [1, 2] is its original size. The library joins the rows of its tiles to rows across the image, with a mark
    at the end of each.
    """

    def _prepare_image(self, picture: Any, alone: bool) -> Prepared:
        features, [text] = self._processor._process_images([picture], **self._image_options)
        return self._make_prepared(
            "image", text, {"tiles": features["pixel_values"][0], "size": features["image_sizes"]}
        )

    def _encode_images(self, batch: Sequence[Prepared]) -> list[Tensor]:
        return self._encode_packed(batch)

    def _encode_packed(self, batch: Sequence[Prepared], **more: Any) -> list[Tensor]:
        """Return [n_tokens, H] for each image; ``more`` is passed to the library."""
        module: Any = self.module
        sizes = torch.cat([item.features["size"] for item in batch])
        rows = module.model.get_image_features(self._stack_tiles(batch), sizes, return_dict=True, **more).pooler_output
        return list(rows)


class TowerFamily(VisionLanguage):
    """See ``contract.ModelFamily``."""

    eyes = ("model.vision_tower", "model.multi_modal_projector")
    modalities: ClassVar[tuple[str, ...]] = ("image",)
    encoder: ClassVar[type[TowerVisionEncoder]] = TowerVisionEncoder
    thinker: ClassVar[type[SequentialThinker]] = SequentialThinker

    def _make_vision_encoder(
        self, module: Any, checkpoint: Path, limits: media.MediaDecodeLimits
    ) -> TowerVisionEncoder:
        return self.encoder(module, checkpoint, self.modalities, limits)

    def _make_thinker(self, module: Any, checkpoint: Path) -> SequentialThinker:
        return self.thinker(module, checkpoint, self.modalities)
