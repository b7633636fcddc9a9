"""LLaVA-OneVision: pictures in tiles by their aspect ratio, and videos (``LlavaOnevisionForConditionalGeneration``)."""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from omnibus_models.contract import Prepared
from omnibus_models.families import _llava_style

#: Beside it a picture is not alone, and it costs next to nothing.
_PIXEL = Image.new("RGB", (1, 1))


class LlavaOnevisionEncoder(_llava_style.TilingEncoder):
    """A picture that has others beside it in its request is one tile; one alone is seen in more detail."""

    closer = frozenset({"image"})

    def _prepare_image(self, picture: Any, alone: bool) -> Prepared:
        if alone:
            return super()._prepare_image(picture, alone)
        found, [text, _] = self._processor._process_images([[picture, _PIXEL]], **self._image_options)
        features = {"tiles": found["pixel_values"][0], "size": found["image_sizes"][:1]}
        return self._make_prepared("image", text, features)

    def _encode_images(self, batch: Sequence[Prepared]) -> list[Tensor]:
        # The library counts the pictures of each request: first those alone, then all others as if of one request.
        order = sorted(range(len(batch)), key=lambda place: len(batch[place].features["tiles"]) == 1)
        beside = sum(len(item.features["tiles"]) == 1 for item in batch)
        # One of the others would be counted as alone; counting one more than there are does no harm.
        counts = [1] * (len(batch) - beside) + ([max(2, beside)] if beside else [])
        rows = self._encode_packed([batch[place] for place in order], batch_num_images=counts)
        return [row for _, row in sorted(zip(order, rows, strict=True), key=lambda found: found[0])]

    def _encode_videos(self, batch: Sequence[Prepared]) -> list[Tensor]:
        """All videos as one, cut apart: its rows are those of its frames, and one more at the end of each video."""
        module: Any = self.module
        whole = module.model.get_video_features(self._stack_tiles(batch)[None], return_dict=True).pooler_output[0]
        rows = whole[:-1].split([item.meta["n_tokens"] - 1 for item in batch])
        return [torch.cat([row, whole[-1:]]) for row in rows]


class LlavaOnevision(_llava_style.TowerFamily):
    """See ``contract.Family``."""

    name = "llava_onevision"
    architecture = "LlavaOnevisionForConditionalGeneration"
    modalities = ("image", "video")
    encoder = LlavaOnevisionEncoder


FAMILY = LlavaOnevision()
