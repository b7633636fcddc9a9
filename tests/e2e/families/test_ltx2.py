"""LTX-2 generates the library pipeline's video and audio in every split.

Other models on the system do not change this.
"""

import asyncio
import base64
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from tests.e2e.apps.estate import read_error
from tests.e2e.system import System, declare_model, start_system
from tests.e2e.watch import Watch
from tests.nightly import mark_nightly
from tests.oracles import ltx2 as oracle
from tests.unit.models import files

pytestmark = pytest.mark.e2e

MODEL = "ltx2-tiny"
STUDIO = Path(__file__).parent / "studio"
APART, TOGETHER = "T>D>V>A", "M"
USUAL = {"prompt": "a cat sits on the mat", "width": 64, "height": 32, "seconds": 0.375, "steps": 4, "seed": 1, "sound": True}  # fmt: skip
WISHES: dict[str, dict[str, Any]] = {
    "usual": USUAL,
    "slow": {**USUAL, "negative_prompt": "clouds", "seconds": 1.6, "fps": 12.5, "guidance": 5.0, "steps": 3, "seed": 2},
    "plain": {**USUAL, "height": 64, "seconds": 0.0, "guidance": 1.0, "seed": 3},
    "begun": {
        **USUAL,
        "negative_prompt": "clouds",
        "seed": 4,
        "first": base64.b64encode(files.make_picture(1)).decode(),
    },
}


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory, ltx2_checkpoint: Path) -> Iterator[System]:
    models = {MODEL: declare_model("ltx2", ltx2_checkpoint)}
    flags = ("--apps-dir", str(STUDIO), "--app", str(STUDIO / "director.py"))
    with start_system(tmp_path_factory.mktemp("studio"), models, *flags) as system:
        yield system


@pytest.fixture(autouse=True)
async def executor_pids(studio: System) -> dict[str, int]:
    pids = await studio.whole()
    await studio.becomes_ready()
    return pids


class FilmResult(NamedTuple):
    frames: np.ndarray
    sound: np.ndarray | None
    steps: list[int]
    path: str


def expected_film(checkpoint: Path, wish: dict[str, Any]) -> oracle.Film:
    """The pipeline's video before rounding."""
    fps = wish.get("fps", 24.0)
    guidance = wish.get("guidance")
    return oracle.generate_video(
        checkpoint,
        wish["prompt"],
        width=wish["width"],
        height=wish["height"],
        frames=int(wish["seconds"] * fps) // 8 * 8 + 1,
        steps=wish["steps"],
        seed=wish["seed"],
        fps=fps,
        negative=wish.get("negative_prompt", ""),
        first=base64.b64decode(wish.get("first", "")),
        **(oracle.PLAIN if guidance == 1.0 else {} if guidance is None else {"guidance_scale": guidance}),
    )


async def invoke_director(studio: System, wish: dict[str, Any], path: str = "") -> httpx.Response:
    async with studio.http() as http:
        return await http.post("/v1/apps/director/invoke", json=wish, headers={"x-omnibus-path": path} if path else {})


async def make_film(studio: System, wish: dict[str, Any], path: str = "") -> FilmResult:
    answer = await invoke_director(studio, wish, path)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    sound = None
    if "audio" in body:
        assert body["audio"]["rate"] == 8000
        sound = decode_array(body["audio"], np.float32)
    return FilmResult(decode_array(body["frames"], np.uint8), sound, body["steps"], answer.headers["x-omnibus-path"])


def decode_array(field: dict[str, Any], dtype: Any) -> np.ndarray:
    return np.frombuffer(base64.b64decode(field["data"]), dtype).reshape(field["shape"])


def assert_alike(result: FilmResult, film: oracle.Film) -> None:
    # Only values between two of 256 steps may round differently.
    np.testing.assert_allclose(result.frames, film.frames, atol=0.51)
    np.testing.assert_allclose(result.sound, film.sound, atol=1e-5)


@pytest.mark.cell("transformers", "ltx2", "video", shape=(APART, TOGETHER))
@pytest.mark.parametrize("name", WISHES)
async def test_a_film_is_that_of_the_pipeline_apart_and_together(studio: System, ltx2_checkpoint: Path, name: str):
    wish = WISHES[name]

    apart, together = await make_film(studio, wish, APART), await make_film(studio, wish, TOGETHER)

    assert (apart.path, together.path) == (APART, TOGETHER)
    np.testing.assert_array_equal(apart.frames, together.frames)
    np.testing.assert_array_equal(apart.sound, together.sound)
    assert_alike(apart, expected_film(ltx2_checkpoint, wish))
    assert apart.frames.std() > 10
    assert apart.sound.std() > 0.01
    assert apart.steps == [*range(1, wish["steps"] + 1)]
    await studio.ledger_is_empty()


async def test_films_of_many_requests_at_once_are_each_their_own(studio: System, ltx2_checkpoint: Path):
    wishes = [{**WISHES[name], "seed": seed} for seed in range(3) for name in WISHES]

    films = await asyncio.gather(*(make_film(studio, wish) for wish in wishes))

    for wish, film in zip(wishes, films, strict=True):
        assert_alike(film, expected_film(ltx2_checkpoint, wish))
    await studio.ledger_is_empty()


async def test_a_film_without_sound_is_the_same_film(studio: System):
    loud = await make_film(studio, USUAL, APART)

    async with Watch.on(studio) as watch:
        silent = await make_film(studio, {**USUAL, "sound": False, "progress": False})

    assert silent.sound is None
    assert silent.steps == []
    np.testing.assert_array_equal(silent.frames, loud.frames)
    assert not [one.subject for one in watch.seen if one.subject.startswith("omnibus.task.decode-audio")]
    assert silent.path in ("T>D>V", "M")


@pytest.mark.parametrize("victim", ["D", *mark_nightly("A")])
async def test_a_film_whose_executor_dies_is_made_elsewhere_and_is_the_same(
    studio: System, ltx2_checkpoint: Path, executor_pids: dict[str, int], victim: str
):
    wish = {**WISHES["begun"], "steps": 20}
    async with Watch.on(studio) as watch:
        making = asyncio.create_task(make_film(studio, wish, APART))
        await watch.until(lambda: any(b'"output":"progress"' in one.data for one in watch.seen))

    os.kill(executor_pids[f"{MODEL}-{victim}-0"], signal.SIGKILL)

    assert_alike(await making, expected_film(ltx2_checkpoint, wish))
    await studio.ledger_is_empty()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 60}, "width must be a multiple of 32"),
        ({"steps": 1}, "steps must be 2 to 1000"),
        ({"fps": 500.0, "seconds": 1.0}, "fps must be 1 to 120"),
        ({"prompt": "a <end_of_turn> b"}, "control token"),
        ({"width": 16384, "height": 16384}, "over the limit"),
        ({"width": 2048, "height": 2048, "seconds": 60}, "in all its frames"),
        ({"seconds": -1}, "seconds"),
        ({"first": base64.b64encode(b"no image").decode()}, "in an unknown format"),
    ],
)
async def test_wishes_that_cannot_be_met_are_refused(studio: System, changes: dict[str, Any], message: str):
    answer = await invoke_director(studio, {**USUAL, **changes})

    assert 400 <= answer.status_code < 500, answer.text
    assert message in read_error(answer)["message"]
    await studio.ledger_is_empty()
