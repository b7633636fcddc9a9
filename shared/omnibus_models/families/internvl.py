"""InternVL3: images and videos in tiles (``InternVLForConditionalGeneration``)."""

import operator
from collections.abc import Mapping
from typing import Any

from omnibus_models.contract import Encoded
from omnibus_models.families import _llava_style


class InternVlThinker(_llava_style.SequentialThinker):
    """The language model of InternVL3. A video is its numbered frames, each between marks."""

    def _placeholder_id(self, modality: str) -> int:
        token: int = super()._placeholder_id(modality) if modality == "image" else self._tokenizer.video_token_id
        return token

    def _frame_placeholders(self, text: str) -> str:
        words = self._tokenizer
        begin, end, row, video = (
            words.start_image_token,
            words.end_image_token,
            words.context_image_token,
            words.video_token,
        )
        framed_text = text.replace(row, f"{begin}{row}{end}")
        return framed_text.replace(video, f"Frame1: {begin}{video}{end}")

    def _expand_placeholder(self, token: int, item: Encoded) -> list[int]:
        row = super()._placeholder_id("image")
        frames = item.meta["frames"] if item.meta["modality"] == "video" else 1
        rows = [row] * (item.embeds.shape[0] // frames)
        ids = list(rows)
        for number in range(2, frames + 1):
            ids += [*self._frame_separator(number), *rows]
        return ids

    def _frame_separator(self, number: int) -> list[int]:
        """Return the ids between a frame and frame ``number``."""
        words = self._tokenizer
        text = f"{words.end_image_token}\nFrame{number}: {words.start_image_token}"
        ids: list[int] = words(text, add_special_tokens=False)["input_ids"]
        return ids

    def _row_count(self, meta: Mapping[str, Any]) -> int:
        rows = super()._row_count(meta)
        if meta["modality"] == "video":
            frames = operator.index(meta["frames"])
            if frames < 1 or rows % frames:
                raise ValueError("invalid frames")
        return rows


class InternVlEncoder(_llava_style.TowerVisionEncoder):
    """Images in tiles, and of videos the middle frames of equal parts.

    It follows ``InternVLVideoProcessor``.
    """

    frame_place = "middles"


class InternVL(_llava_style.TowerFamily):
    """See ``contract.ModelFamily``."""

    name = "internvl"
    architecture = "InternVLForConditionalGeneration"
    modalities = ("image", "video")
    encoder = InternVlEncoder
    thinker = InternVlThinker


FAMILY = InternVL()
