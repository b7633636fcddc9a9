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
    denoise_film,
    encode_prompts,
    first_frame,
    list_inputs,
    load_parts,
    normalize_latents,
    read_latents,
)


@pytest.fixture(scope="module")
def parts(ltx2: Path) -> dict[str, Any]:
    return load_parts(ltx2)


WIDE, TALL = files.make_picture(1), files.make_picture(2, 50, 131)


@pytest.mark.parametrize(
    ("picture", "guidance", "first"),
    [(*film, first) for film, first in zip(FILMS, (WIDE, TALL, WIDE), strict=True)],
    ids=["usual", "guided", "plain"],
)
def test_a_film_from_an_image_is_that_of_the_pipeline(
    parts: dict[str, Any], ltx2: Path, picture: ImageSpec, guidance: dict[str, Any], first: bytes
) -> None:
    one = denoise_film(parts, CAT, picture, HILL, first=first)

    library_film = oracle.generate_video(
        ltx2, CAT, **list_inputs(picture), negative=HILL, output="latent", first=first, **guidance
    )
    film, sound = read_latents(parts, one)
    for own_latents, library_latents in zip((film, sound), normalize_latents(parts, library_film), strict=True):
        assert_close(own_latents, library_latents, DENOISED_BOUND)
    assert torch.equal(film[:, :1], first_frame(parts, picture, first))
    other = read_latents(parts, denoise_film(parts, CAT, picture, HILL, first=files.make_picture(7)))
    for own_latents, library_latents in zip((film, sound), other, strict=True):
        assert not torch.allclose(own_latents, library_latents, atol=1e-2)


@pytest.mark.numeric
def test_films_with_and_without_a_first_frame_share_steps(parts: dict[str, Any]) -> None:
    picture = ImageSpec(64, 32, 4, 1, frames=9)
    wishes: list[dict[str, Any]] = [{"image": first_frame(parts, picture, WIDE)}, {}]
    films = [parts["dit"].open(picture, encode_prompts(parts, CAT), **wish) for wish in wishes]

    while films[0].done < films[0].steps:
        parts["dit"].step(films)

    alone = denoise_film(parts, CAT, picture, first=WIDE), denoise_film(parts, CAT, picture)
    for one, lone in zip(films, alone, strict=True):
        for actual, reference in zip(read_latents(parts, one), read_latents(parts, lone), strict=True):
            assert_close(actual, reference, DENOISED_BOUND)


@pytest.mark.numeric
def test_a_film_from_an_image_goes_on_from_the_state_of_another_one(parts: dict[str, Any]) -> None:
    picture = ImageSpec(64, 32, 5, 4, frames=9)
    interrupted_film, other = (
        parts["dit"].open(picture, encode_prompts(parts, CAT), image=first_frame(parts, picture, WIDE))
        for _ in range(2)
    )
    for _ in range(3):
        parts["dit"].step([interrupted_film])

    other.resume(interrupted_film.state(), interrupted_film.done)
    while other.done < other.steps:
        parts["dit"].step([other])

    for actual, reference in zip(
        read_latents(parts, other), read_latents(parts, denoise_film(parts, CAT, picture, first=WIDE)), strict=True
    ):
        assert torch.equal(actual, reference)


def test_first_frames_that_cannot_be_used_are_refused(parts: dict[str, Any]) -> None:
    encoder, dit = parts["vae_encoder"], parts["dit"]

    with pytest.raises(BadMedia):
        encoder.prepare(memoryview(b"no image"), ImageSpec(64, 32, steps=1, seed=0))
    with pytest.raises(BadMedia, match="at least 2"):
        encoder.prepare(memoryview(files.make_picture(1, 1, 1)), ImageSpec(64, 32, steps=1, seed=0))
    with pytest.raises(BadMedia, match="at most 16384"):
        encoder.prepare(memoryview(files.make_picture(1, 17_000, 2)), ImageSpec(64, 32, steps=1, seed=0))
    with pytest.raises(BadRequest, match=r"must be \[8, 1, 4, 8\]"):
        dit.open(FILMS[0][0], encode_prompts(parts, CAT), image=torch.zeros(8, 1, 4, 4))
