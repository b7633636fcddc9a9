"""A video resumes from another one's state, with equal frames and audio."""

from pathlib import Path

import pytest
import torch

from omnibus_models import tiny
from omnibus_models.contract import ImageSpec
from omnibus_models.families import load_family


@pytest.mark.numeric
def test_a_film_goes_on_from_the_state_of_another_one(tmp_path: Path) -> None:
    checkpoint = tiny.build("ltx2", tmp_path / "film")
    encoder, dit = (load_family("ltx2").load(name, checkpoint) for name in ("text_encoder", "dit"))
    [guide] = (one.embeds for one in encoder.encode([encoder.prepare("a cat on a hill")]))
    whole, interrupted_film, other = (dit.open(ImageSpec(64, 32, 5, 4, frames=9), [guide]) for _ in range(3))
    for one, steps in ((whole, 5), (interrupted_film, 3)):
        for _ in range(steps):
            dit.step([one])

    other.resume(interrupted_film.state(), interrupted_film.done)
    while other.done < other.steps:
        dit.step([other])

    assert torch.equal(dit.latents(other), dit.latents(whole))
    assert torch.equal(dit.audio_latents(other), dit.audio_latents(whole))
