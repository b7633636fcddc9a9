"""LLaVA-OneVision: images in tiles by aspect ratio, and videos (``LlavaOnevisionForConditionalGeneration``)."""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from omnibus_models.contract import Prepared
from omnibus_models.families import _llava_style

#: A second image, so that an image is not alone; it costs next to nothing.
_PIXEL = Image.new("RGB", (1, 1))


class LlavaOnevisionEncoder(_llava_style.TilingEncoder):
    """A single image is encoded in more detail; with others in its request, it is one tile."""

    closer = frozenset({"image"})

    def _prepare_image(self, picture: Any, alone: bool) -> Prepared:
        if alone:
            return super()._prepare_image(picture, alone)
        output, [text, _] = self._processor._process_images([[picture, _PIXEL]], **self._image_options)
        features = {"tiles": output["pixel_values"][0], "size": output["image_sizes"][:1]}
        return self._make_prepared("image", text, features)

    def _encode_images(self, batch: Sequence[Prepared]) -> list[Tensor]:
        # The library counts the images of each request: first single ones, then all others as if of one request.
        order = sorted(range(len(batch)), key=lambda place: len(batch[place].features["tiles"]) == 1)
        beside = sum(len(item.features["tiles"]) == 1 for item in batch)
        # A lone one of the others would count as single; counting one more than there are is harmless.
        counts = [1] * (len(batch) - beside) + ([max(2, beside)] if beside else [])
        rows = self._encode_packed([batch[place] for place in order], batch_num_images=counts)
        return [row for _, row in sorted(zip(order, rows, strict=True), key=lambda found: found[0])]

    def _encode_videos(self, batch: Sequence[Prepared]) -> list[Tensor]:
        """Encode all videos as one, and split the result.

        The rows of a video are those of its frames, and one more at its end.
        """
        module: Any = self.module
        whole = module.model.get_video_features(self._stack_tiles(batch)[None], return_dict=True).pooler_output[0]
        rows = whole[:-1].split([item.meta["n_tokens"] - 1 for item in batch])
        return [torch.cat([row, whole[-1:]]) for row in rows]


class LlavaOnevision(_llava_style.TowerFamily):
    """See ``contract.ModelFamily``."""

    name = "llava_onevision"
    architecture = "LlavaOnevisionForConditionalGeneration"
    modalities = ("image", "video")
    encoder = LlavaOnevisionEncoder


FAMILY = LlavaOnevision()
