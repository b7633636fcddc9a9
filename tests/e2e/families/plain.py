"""Models with a vision tower and plain positions, whole and in halves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omnibus.families import catalog
from omnibus_models import tiny
from tests.e2e.questions import Question, make_image, make_question, make_video
from tests.e2e.system import System, declare_model
from tests.e2e.watch import Watch
from tests.oracles import plain as oracle

TOKENS = 24
#: Ways of a request with media, and of one without.
PATHS = {"E>L": "L", "EL": "EL", "E>EL": "EL", "E>P>D": "P>D"}
QUESTIONS = {
    "text": make_question("hello world, how are you today?"),
    "image": make_question(make_image(1, 120, 90), "what is in this picture?"),
    "two images": make_question(make_image(2), "and", make_image(3, 120, 200), "describe the image"),
}
#: For models that take videos as well.
FILMS = {
    "video": make_question(make_video(2), "summarise the video please."),
    "video before an image": make_question(make_video(1.5, 1), make_image(4, 200, 80), "describe"),
}


def build_checkpoints(directory: Path, *families: str) -> dict[str, Path]:
    return {family: tiny.build(family, directory / family) for family in families}


def build_models(checkpoints: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Declarations of each family, whole and in halves."""
    halves = {
        _halves_name(family): catalog.split_declaration(family, str(path), "E>P>D")
        for family, path in checkpoints.items()
    }
    return {family: declare_model(family, path) for family, path in checkpoints.items()} | halves


async def equals_the_monolith(system: System, family: str, checkpoint: Path, shape: str, question: Question) -> None:
    """Check that ids and text in ``shape`` equal the whole model's."""
    ids, text = oracle.generate_answer(checkpoint, question.plain, question.media, TOKENS)
    path = shape if question.media else PATHS[shape]

    async with Watch.on(system) as watch, system.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=_halves_name(family) if "P" in shape else family,
            messages=question.messages,
            max_tokens=TOKENS,
            temperature=0,
            extra_headers={"x-omnibus-path": path},
        )
        await watch.end(raw.headers["x-request-id"])

    assert raw.headers["x-omnibus-path"] == path
    assert raw.parse().choices[0].message.content == text
    assert watch.ids(raw.headers["x-request-id"]) == ids
    await system.ledger_is_empty()


#: Families of the one system of ``conftest.plain``.
FAMILIES = ("llava", "llava_next", "internvl", "llava_onevision")


def _halves_name(family: str) -> str:
    return f"{family}-halves"
