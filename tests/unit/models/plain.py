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
from tests.unit.models.split import encode, think

TOKENS = 16
IMAGE, VIDEO = {"type": "image"}, {"type": "video"}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def user(*parts: dict[str, str]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


#: Messages and media. Names with a "video" are for models with video input.
CASES: dict[str, tuple[list[dict[str, Any]], dict[str, list[bytes]]]] = {
    "text": ([{"role": "user", "content": "hello world, how are you today?"}], {}),
    "image": ([user(IMAGE, text("what is in this picture?"))], {"image": [files.picture(1)]}),
    "wide image": ([user(text("look "), IMAGE, text("?"))], {"image": [files.picture(1, 300, 80)]}),
    "tall image": ([user(IMAGE, text("what is this?"))], {"image": [files.picture(2, 60, 300)]}),
    "large image": ([user(IMAGE, text("describe"))], {"image": [files.picture(3, 400, 400)]}),
    "two images": (
        [user(IMAGE, text("and"), IMAGE, text("?"))],
        {"image": [files.picture(2), files.picture(3, 200, 120)]},
    ),
    "several turns": (
        [
            {"role": "system", "content": "you are a small cat."},
            user(IMAGE, text("what is this?")),
            {"role": "assistant", "content": "a red square."},
            user(text("and this?"), IMAGE),
        ],
        {"image": [files.picture(6), files.picture(7)]},
    ),
    "video": ([user(VIDEO, text("summarise the video please"))], {"video": [files.film(3)]}),
    "video before an image": (
        [user(text("look  "), VIDEO, IMAGE, text("describe"))],
        {"image": [files.picture(4)], "video": [files.film(2, 1)]},
    ),
    "video between images": (
        [user(IMAGE, VIDEO, IMAGE, text("describe"))],
        {"image": [files.picture(4), files.picture(5)], "video": [files.film(2, 1)]},
    ),
}


@dataclass(frozen=True)
class Model:
    """One checkpoint and its components, each loaded alone."""

    checkpoint: Path
    vision: Any
    thinker: Any

    def ids(self, messages: Sequence[dict[str, Any]], media: dict[str, list[bytes]]) -> list[int]:
        """Return a greedy answer."""
        return think(self.thinker, [self.vision], messages, media, TOKENS).ids

    def items(self, messages: Sequence[dict[str, Any]], media: dict[str, list[bytes]]) -> list[Encoded]:
        """Return the media of a chat."""
        return encode([self.vision], self.thinker.prompt(messages).modalities, media)


def loaded(checkpoint: Path) -> Model:
    family = families.family_of(checkpoint)
    return Model(checkpoint, family.load("vision", checkpoint), family.load("thinker", checkpoint))


def built(family: str, directory: Path) -> Model:
    return loaded(tiny.build(family, directory / family))


def copied(
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
        found = json.loads((copy / name).read_text())
        change(found)
        (copy / name).write_text(json.dumps(found))
    held = load_file(copy / "model.safetensors")
    weights(held)
    save_file(held, copy / "model.safetensors", {"format": "pt"})
    return copy
