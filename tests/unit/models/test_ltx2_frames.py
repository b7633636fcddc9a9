"""A video of LTX-2 with a first image equals the library's."""

from pathlib import Path
from typing import Any

import pytest
import torch

from omnibus.errors import BadMedia, BadRequest
from omnibus_models.contract import ImageSpec
from tests.close import DENOISED_BOUND, assert_close
from tests.oracles import ltx2 as oracle
from tests.unit.models import files
from tests.unit.models.ltx2_films import (
    CAT,
    FILMS,
    HILL,
    asked,
    first_frame,
    guides,
    latents,
    loaded,
    made,
    normal,
)


@pytest.fixture(scope="module")
def parts(ltx2: Path) -> dict[str, Any]:
    return loaded(ltx2)


WIDE, TALL = files.picture(1), files.picture(2, 50, 131)


@pytest.mark.parametrize(
    ("picture", "guidance", "first"),
    [(*film, first) for film, first in zip(FILMS, (WIDE, TALL, WIDE), strict=True)],
    ids=["usual", "guided", "plain"],
)
def test_a_film_from_an_image_is_that_of_the_pipeline(
    parts: dict[str, Any], ltx2: Path, picture: ImageSpec, guidance: dict[str, Any], first: bytes
) -> None:
    one = made(parts, CAT, picture, HILL, first=first)

    found = oracle.filmed(ltx2, CAT, **asked(picture), negative=HILL, output="latent", first=first, **guidance)
    film, sound = latents(parts, one)
    for ours, theirs in zip((film, sound), normal(parts, found), strict=True):
        assert_close(ours, theirs, DENOISED_BOUND)
    assert torch.equal(film[:, :1], first_frame(parts, picture, first))
    other = latents(parts, made(parts, CAT, picture, HILL, first=files.picture(7)))
    for ours, theirs in zip((film, sound), other, strict=True):
        assert not torch.allclose(ours, theirs, atol=1e-2)


@pytest.mark.numeric
def test_films_with_and_without_a_first_frame_share_steps(parts: dict[str, Any]) -> None:
    picture = ImageSpec(64, 32, 4, 1, frames=9)
    wishes: list[dict[str, Any]] = [{"image": first_frame(parts, picture, WIDE)}, {}]
    both = [parts["dit"].open(picture, guides(parts, CAT), **wish) for wish in wishes]

    while both[0].done < both[0].steps:
        parts["dit"].step(both)

    alone = made(parts, CAT, picture, first=WIDE), made(parts, CAT, picture)
    for one, lone in zip(both, alone, strict=True):
        for found, wanted in zip(latents(parts, one), latents(parts, lone), strict=True):
            assert_close(found, wanted, DENOISED_BOUND)


@pytest.mark.numeric
def test_a_film_from_an_image_goes_on_from_the_state_of_another_one(parts: dict[str, Any]) -> None:
    picture = ImageSpec(64, 32, 5, 4, frames=9)
    lost, other = (
        parts["dit"].open(picture, guides(parts, CAT), image=first_frame(parts, picture, WIDE)) for _ in range(2)
    )
    for _ in range(3):
        parts["dit"].step([lost])

    other.resume(lost.state(), lost.done)
    while other.done < other.steps:
        parts["dit"].step([other])

    for found, wanted in zip(latents(parts, other), latents(parts, made(parts, CAT, picture, first=WIDE)), strict=True):
        assert torch.equal(found, wanted)


def test_first_frames_that_cannot_be_used_are_refused(parts: dict[str, Any]) -> None:
    encoder, dit = parts["vae_encoder"], parts["dit"]

    with pytest.raises(BadMedia):
        encoder.prepare(memoryview(b"no image"), 64, 32)
    with pytest.raises(BadMedia, match="at least 2"):
        encoder.prepare(memoryview(files.picture(1, 1, 1)), 64, 32)
    with pytest.raises(BadMedia, match="at most 16384"):
        encoder.prepare(memoryview(files.picture(1, 17_000, 2)), 64, 32)
    with pytest.raises(BadRequest, match=r"must be \[8, 1, 4, 8\]"):
        dit.open(FILMS[0][0], guides(parts, CAT), image=torch.zeros(8, 1, 4, 4))
