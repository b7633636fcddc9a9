"""Tiny models with vision tower and plain positions, and their chats."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from omnibus_models import families, tiny
from omnibus_models.contract import Encoded
from tests.unit.models import files
from tests.unit.models.split import encode_files, think_greedily

TOKENS = 16
IMAGE, VIDEO = {"type": "image"}, {"type": "video"}


def make_text_part(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def make_user_message(*parts: dict[str, str]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


#: Messages and media. Names with a "video" are for models with video input.
CASES: dict[str, tuple[list[dict[str, Any]], dict[str, list[bytes]]]] = {
    "text": ([{"role": "user", "content": "hello world, how are you today?"}], {}),
    "image": (
        [make_user_message(IMAGE, make_text_part("what is in this picture?"))],
        {"image": [files.make_picture(1)]},
    ),
    "wide image": (
        [make_user_message(make_text_part("look "), IMAGE, make_text_part("?"))],
        {"image": [files.make_picture(1, 300, 80)]},
    ),
    "tall image": (
        [make_user_message(IMAGE, make_text_part("what is this?"))],
        {"image": [files.make_picture(2, 60, 300)]},
    ),
    "large image": (
        [make_user_message(IMAGE, make_text_part("describe"))],
        {"image": [files.make_picture(3, 400, 400)]},
    ),
    "two images": (
        [make_user_message(IMAGE, make_text_part("and"), IMAGE, make_text_part("?"))],
        {"image": [files.make_picture(2), files.make_picture(3, 200, 120)]},
    ),
    "several turns": (
        [
            {"role": "system", "content": "you are a small cat."},
            make_user_message(IMAGE, make_text_part("what is this?")),
            {"role": "assistant", "content": "a red square."},
            make_user_message(make_text_part("and this?"), IMAGE),
        ],
        {"image": [files.make_picture(6), files.make_picture(7)]},
    ),
    "video": (
        [make_user_message(VIDEO, make_text_part("summarise the video please"))],
        {"video": [files.make_film(3)]},
    ),
    "video before an image": (
        [make_user_message(make_text_part("look  "), VIDEO, IMAGE, make_text_part("describe"))],
        {"image": [files.make_picture(4)], "video": [files.make_film(2, 1)]},
    ),
    "video between images": (
        [make_user_message(IMAGE, VIDEO, IMAGE, make_text_part("describe"))],
        {"image": [files.make_picture(4), files.make_picture(5)], "video": [files.make_film(2, 1)]},
    ),
}


@dataclass(frozen=True)
class VisionTextModel:
    """One checkpoint and its components, each loaded alone."""

    checkpoint: Path
    vision: Any
    thinker: Any

    def ids(self, messages: Sequence[dict[str, Any]], media: dict[str, list[bytes]]) -> list[int]:
        """Return a greedy answer."""
        return think_greedily(self.thinker, [self.vision], messages, media, TOKENS).ids

    def items(self, messages: Sequence[dict[str, Any]], media: dict[str, list[bytes]]) -> list[Encoded]:
        """Return the media of a chat."""
        return encode_files([self.vision], self.thinker.prompt(messages).modalities, media)


def load_model(checkpoint: Path) -> VisionTextModel:
    family = families.family_of(checkpoint)
    return VisionTextModel(checkpoint, family.load("vision", checkpoint), family.load("thinker", checkpoint))


def build_model(family: str, directory: Path) -> VisionTextModel:
    return load_model(tiny.build(family, directory / family))


def copy_checkpoint(
    checkpoint: Path,
    copy: Path,
    *,
    config: Callable[[dict[str, Any]], object] = lambda _: None,
    processor: Callable[[dict[str, Any]], object] = lambda _: None,
    weights: Callable[[dict[str, torch.Tensor]], object] = lambda _: None,
) -> Path:
    """Return a copy of a checkpoint that the functions have changed."""
    shutil.copytree(checkpoint, copy)
    for name, change in (("config.json", config), ("processor_config.json", processor)):
        fields = json.loads((copy / name).read_text())
        change(fields)
        (copy / name).write_text(json.dumps(fields))
    tensors = load_file(copy / "model.safetensors")
    weights(tensors)
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    return copy
