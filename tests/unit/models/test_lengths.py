"""A text that cannot fit a context is rejected before tokenizing."""

from typing import Any

import numpy as np
import pytest

from omnibus.errors import ContextTooLong
from omnibus_models import families, tiny
from omnibus_models.families._lengths import Lengths

FAMILIES = ("qwen2", "gemma3", "janus")
CONTEXT = 4096


@pytest.fixture(scope="module", params=FAMILIES)
def reader(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tiny.build(request.param, tmp_path_factory.mktemp("models") / request.param)
    return families.family_of(path).load("thinker", path)


class CountingTokenizer:
    """A real tokeniser that records the number of characters it received."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.characters = 0

    def __call__(self, text: str, **options: Any) -> Any:
        self.characters += len(text)
        return self._tokenizer(text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


GIANTS = {
    "people of many parts": "\U0001f9d1\u200d" * 1_000_000,
    "spaces": " " * 8_000_000,
    "one letter": "a" * 8_000_000,
    "words": "the quick brown fox " * 400_000,
    "composed letters": "e\u0301" * 2_000_000,
}


FORMS: dict[str, Any] = {
    "chat": lambda reader, text: reader.prompt([{"role": "user", "content": text}], CONTEXT),
    "parts": lambda reader, text: reader.prompt(
        [{"role": "user", "content": [{"type": "text", "text": text}]}], CONTEXT
    ),
    "messages": lambda reader, text: reader.prompt(
        [{"role": "user", "content": text[at : at + 50_000]} for at in range(0, 1_000_000, 50_000)], CONTEXT
    ),
    "words": lambda reader, text: reader.encode_text(text, context=CONTEXT),
}


@pytest.mark.parametrize(
    ("text", "form"), [*((text, "chat") for text in GIANTS), *(("words", form) for form in FORMS if form != "chat")]
)
def test_a_giant_text_costs_no_more_than_one_that_fits(reader: Any, text: str, form: str) -> None:
    plain = reader._tokenizer
    counting = reader._tokenizer = CountingTokenizer(plain)
    reader._lengths = Lengths(counting)

    with pytest.raises(ContextTooLong, match=f"more than the {CONTEXT} tokens that fit"):
        FORMS[form](reader, GIANTS[text])

    reader._tokenizer = plain
    assert counting.characters <= 1_000_000


@pytest.mark.parametrize("seed", range(4))
def test_no_text_that_fits_is_refused(reader: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    alphabet = ["a", " ", "  ", "\n", "the ", "fox", "\u00e9", "e\u0301", "\U0001f9d1\u200d", "\u4f60", "12", "!?"]
    text = "".join(random.choice(alphabet, random.integers(20_000, 50_000)))
    count = len(reader._tokenizer(text)["input_ids"])

    assert len(reader.encode_text(text, context=count)) <= count


def test_a_text_longer_than_a_piece_keeps_its_tokens(reader: Any) -> None:
    text = "the quick brown fox " * 10_000

    assert (
        list(reader.encode_text(text, context=10**6)) == reader._tokenizer(text, add_special_tokens=False)["input_ids"]
    )
