"""Models with prompts beyond causal attention: requests with real images, and the whole models' answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from omnibus.executor.runner import Item
from omnibus_models import families
from tests.oracles import plain as oracle
from tests.unit.jobs import MemoryJob
from tests.unit.llm.runners.test_thinker import WORDS
from tests.unit.models import files

TOKENS = 16

#: Widths and heights: one, two and four tiles of a model that splits images into tiles.
SIZES = ((50, 50), (50, 100), (300, 60))


@dataclass(frozen=True)
class PictureRequest:
    """Messages, their images, and the number of tokens to generate."""

    messages: list[dict[str, Any]]
    pictures: tuple[bytes, ...] = ()
    tokens: int = TOKENS


@dataclass
class Pictured:
    """A model: its checkpoint, and its encoder, which encodes every image once."""

    family: str
    checkpoint: Path
    seen: dict[bytes, Item] = field(default_factory=dict)

    @cached_property
    def vision(self) -> Any:
        return families.load_family(self.family).load("vision", self.checkpoint)

    def job(self, request: PictureRequest, **params: Any) -> MemoryJob:
        all_params = {"max_tokens": request.tokens, **params}
        return MemoryJob(
            {"messages": request.messages, "items": [*map(self.item, request.pictures)], "params": all_params},
        )

    def item(self, picture: bytes) -> Item:
        if picture not in self.seen:
            [one] = self.vision.encode([self.vision.prepare(memoryview(picture), "image")])
            self.seen[picture] = Item(dict(one.meta), one.embeds.numpy())
        return self.seen[picture]

    def ids(self, request: PictureRequest) -> list[int]:
        """Return the whole model's answer."""
        media: Mapping[str, Sequence[bytes]] = {"image": request.pictures} if request.pictures else {}
        return oracle.generate_answer(self.checkpoint, request.messages, media, request.tokens)[0]


def make_text_request(number: int) -> PictureRequest:
    return PictureRequest([{"role": "user", "content": " ".join(WORDS[: 2 + number % 17])}], tokens=4 + number % 9)


def make_picture_request(number: int, count: int = 1) -> PictureRequest:
    """Return a question about ``count`` images, with words around them."""
    content: list[dict[str, str]] = [{"type": "text", "text": WORDS[number % 19]}]
    for place in range(count):
        content += [{"type": "image"}, *({"type": "text", "text": word} for word in WORDS[: (number + place) % 3])]
    pictures = tuple(files.make_picture(number + place, *SIZES[(number + place) % 3]) for place in range(count))
    return PictureRequest([{"role": "user", "content": content}], pictures, 6 + number % 7)


def make_mixed_requests(count: int) -> list[PictureRequest]:
    """Return requests of text and of one, two or three images."""
    return [
        make_text_request(n) if n % 3 == 1 else make_picture_request(n, 1 + n % 4 // 2 + n % 5 // 4)
        for n in range(count)
    ]
