"""Videos of LTX-2 by its parts, and the pipeline's scaled latents."""

from pathlib import Path
from typing import Any

from torch import Tensor

from omnibus_models import families
from omnibus_models.contract import ImageSpec
from tests.oracles import ltx2 as oracle

CAT, HILL, NOTHING = "a cat sits on the mat", "a green circle near the hill, and birds sing", ""

FILMS: list[tuple[ImageSpec, dict[str, Any]]] = [
    (ImageSpec(64, 32, 4, 1, frames=9), {}),
    (ImageSpec(32, 64, 6, 2, guidance=5.0, frames=17, fps=12.5), {"guidance_scale": 5.0}),
    (ImageSpec(64, 64, 3, 3, guidance=1.0, frames=1), oracle.PLAIN),
]


def load_parts(checkpoint: Path) -> dict[str, Any]:
    family = families.family_of(checkpoint)
    return {name: family.load(name, checkpoint) for name in family.components}


def encode_prompts(parts: dict[str, Any], *prompts: str) -> list[Tensor]:
    encoder = parts["text_encoder"]
    return [one.embeds for one in encoder.encode([encoder.prepare(prompt) for prompt in prompts])]


def denoise_film(parts: dict[str, Any], prompt: str, picture: ImageSpec, *negative: str, first: bytes = b"") -> Any:
    """Return a video after all of its steps, alone; ``first`` is the file of its first image."""
    start_inputs = {"image": first_frame(parts, picture, first)} if first else {}
    one = parts["dit"].open(picture, encode_prompts(parts, prompt, *negative), **start_inputs)
    while one.done < one.steps:
        parts["dit"].step([one])
    return one


def first_frame(parts: dict[str, Any], picture: ImageSpec, file: bytes) -> Tensor:
    encoder = parts["vae_encoder"]
    return encoder.encode(encoder.prepare(memoryview(file), picture))


def read_latents(parts: dict[str, Any], one: Any) -> tuple[Tensor, Tensor]:
    return parts["dit"].latents(one), parts["dit"].audio_latents(one)


def normalize_latents(parts: dict[str, Any], film: oracle.Film) -> tuple[Tensor, Tensor]:
    """Return the pipeline's latents, normalised to mean 0 and deviation 1."""
    vae, audio = parts["vae"].module, parts["audio_vae"].module["vae"]
    channels, length, bins = film.sound.shape
    sound_rows = film.sound.transpose(0, 1).reshape(length, channels * bins)
    sound_rows = (sound_rows - audio.latents_mean) / audio.latents_std
    mean, deviation = (each.view(-1, 1, 1, 1) for each in (vae.latents_mean, vae.latents_std))
    return (film.frames - mean) / deviation, sound_rows.reshape(length, channels, bins).transpose(0, 1)


def list_inputs(picture: ImageSpec) -> dict[str, Any]:
    names = ("width", "height", "frames", "steps", "seed", "fps")
    return {name: getattr(picture, name) for name in names}
