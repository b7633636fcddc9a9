"""Pipelines in blocks: values between components, their models, steps and errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from omnibus.encoding.image import encode_image
from omnibus.errors import BadRequest, ContextTooLong, Fatal
from omnibus.model_defaults import ImageDefaults
from omnibus_models import media as image_modes
from omnibus_models import tiny
from omnibus_models.contract import ImageChange, ImageSpec
from omnibus_models.families import family_of
from omnibus_models.modular import blocks, trial
from omnibus_models.modular.values import pack_values, unpack_values

SPEC = ImageSpec(width=48, height=32, steps=3, seed=1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("modular_image", tmp_path_factory.mktemp("models") / "modular_image")


@pytest.fixture(scope="module")
def parts(checkpoint: Path) -> dict[str, Any]:
    family = family_of(checkpoint)
    return {name: family.load(name, checkpoint) for name in family.components}


def open_image(parts: dict[str, Any], prompt: str = "a cat", spec: ImageSpec = SPEC) -> Any:
    [encoded] = parts["text_encoder"].encode([parts["text_encoder"].prepare(prompt)])
    return parts["dit"].open(spec, [encoded.embeds])


def test_values_arrive_as_they_were_sent():
    values = {
        "tensor": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        "shared": [torch.ones(2), (torch.zeros(1), None, True, 3, 0.1, "text")],
        "array": np.arange(4.0),
        "image": Image.new("RGB", (3, 2), (1, 2, 3)),
        "dtype": torch.float16,
        "fields": {"a": 1},
    }

    received = unpack_values(pack_values(values), "cpu")

    assert torch.equal(received["tensor"], values["tensor"])  # type: ignore[arg-type]
    assert received["tensor"].dtype == torch.bfloat16
    assert received["shared"][1][1:] == (None, True, 3, 0.1, "text")
    assert received["array"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert (np.asarray(received["image"]) == (1, 2, 3)).all()
    assert (received["dtype"], received["fields"]) == (torch.float16, {"a": 1})


def test_objects_cannot_be_sent_and_other_bytes_are_no_values():
    with pytest.raises(Fatal, match="generator is a Generator"):
        pack_values({"generator": torch.Generator()})
    with pytest.raises(BadRequest, match="no values"):
        unpack_values(torch.zeros(1, 16, dtype=torch.uint8), "cpu")


def test_each_component_has_only_the_models_of_its_blocks(parts: dict[str, Any]):
    models = {name: {*part.module.keys()} for name, part in parts.items()}

    assert models == {
        "text_encoder": {"text_encoder", "text_encoder_2"},
        "vae_encoder": {"vae"},
        "dit": {"transformer"},
        "vae": {"vae"},
    }


def test_an_image_is_made_in_steps_and_can_stop_at_any(parts: dict[str, Any]):
    denoising, stopped = open_image(parts), open_image(parts)
    parts["dit"].step([stopped])
    del stopped

    counts = []
    while denoising.done < denoising.steps:
        parts["dit"].step([denoising])
        counts.append(denoising.done)

    image = parts["vae"].decode(parts["dit"].latents(denoising))
    assert counts == [1, 2, 3]
    assert (image.shape, image.dtype) == ((32, 48, 3), torch.uint8)


def test_what_a_pipeline_cannot_make_is_refused(parts: dict[str, Any]):
    text, denoiser = parts["text_encoder"], parts["dit"]
    with pytest.raises(BadRequest, match="multiple of 8, not 50") as size:
        open_image(parts, spec=ImageSpec(width=50, height=32, steps=3, seed=1))
    with pytest.raises(BadRequest, match="no negative prompt"):
        text.prepare_negative("a cat", "dark")
    with pytest.raises(ContextTooLong, match="takes 512"):
        text.prepare("cat " * 600)
    with pytest.raises(BadRequest, match="no previews"):
        denoiser.palette()
    assert size.value.param == "width"


def test_an_image_without_a_size_keeps_its_proportions(parts: dict[str, Any]):
    encoder = parts["vae_encoder"]
    packed = encoder.pack_image(Image.new("RGB", (101, 50)), ImageSpec(width=0, height=0, steps=1, seed=0))

    assert parts["dit"].image_size(encoder.encode(packed)) == (104, 48)


def test_a_class_is_admitted_only_after_a_trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, checkpoint: Path):
    import diffusers

    monkeypatch.setenv("OMNIBUS_CACHE", str(tmp_path))
    tried: list[Any] = []
    monkeypatch.setattr(
        trial, "try_class", lambda cls: tried.append(cls) or trial.PipelineVerdict("other pixels", "too", "too")
    )

    for _ in range(2):
        with pytest.raises(Fatal, match="FluxModularPipeline of diffusers .* is not served: other pixels"):
            family_of(checkpoint).load("vae", checkpoint)

    assert tried == [diffusers.FluxModularPipeline]


def test_a_trial_notices_components_that_give_other_pixels(monkeypatch: pytest.MonkeyPatch, checkpoint: Path):
    import diffusers

    monkeypatch.setattr(blocks, "_load_outline", lambda cls, checkpoint, name: None)  # the VAE's factor is then 8

    fault = trial.find_fault(diffusers.FluxModularPipeline, checkpoint)

    assert "other pixels" in fault or "multiple" in fault, fault


def test_limits_of_a_checkpoint_are_checked_before_work_begins(checkpoint: Path):
    defaults = ImageDefaults(**family_of(checkpoint).image_defaults(checkpoint))  # type: ignore[attr-defined]

    defaults.check_request("m", {"width": 48, "height": 32}, 1)
    for wish, param in (({"width": 50, "height": 32}, "size"), ({"negative_prompt": "dark"}, "negative_prompt")):
        with pytest.raises(BadRequest) as error:
            defaults.check_request("m", wish, 0)
        assert error.value.param == param
    with pytest.raises(BadRequest, match="text alone"):
        ImageDefaults(image=False).check_request("m", {}, 1)
    assert (defaults.side_multiple, defaults.steps, defaults.image) == (8, 50, True)


def test_pipelines_with_a_family_keep_it_and_others_are_found_by_their_blocks(tmp_path: Path):
    names = {
        "QwenImagePipeline": "qwen_image",
        "ZImagePipeline": "modular_image",
        "WanModularPipeline": "modular_video",
    }
    for cls, family in names.items():
        index = "modular_model_index.json" if "Modular" in cls else "model_index.json"
        directory = tmp_path / cls
        directory.mkdir()
        (directory / index).write_text(f'{{"_class_name": "{cls}"}}')

        assert family_of(directory).name == family


def test_transparent_pixels_of_a_mask_are_to_change_or_white_ones_without_transparency():
    clear = Image.new("RGBA", (2, 1), (0, 0, 0, 255))
    clear.putpixel((1, 0), (9, 9, 9, 0))

    white = Image.new("RGB", (2, 1), (255, 255, 255))

    masks = [np.asarray(image_modes.convert_to_mask(image)).tolist() for image in (clear, white)]

    assert masks == [[[0, 255]], [[255, 255]]]


def test_a_mask_and_a_strength_are_refused_where_the_model_takes_none(parts: dict[str, Any], checkpoint: Path):
    image = Image.new("RGB", (32, 32))
    with pytest.raises(BadRequest, match="takes no mask"):
        parts["vae_encoder"].pack_image(image, SPEC, mask=image)
    defaults = ImageDefaults(**family_of(checkpoint).image_defaults(checkpoint))  # type: ignore[attr-defined]
    defaults.check_request("m", {"strength": 0.5}, 1)
    with pytest.raises(BadRequest, match="m takes no mask of an edit") as mask:
        defaults.check_request("m", {"mask": image}, 1)
    assert mask.value.param == "mask"


@pytest.mark.parametrize(("strength", "steps"), [(1.0, 3), (0.33, 1)])
def test_strength_is_the_share_of_steps(parts: dict[str, Any], strength: float, steps: int):
    encoder, text = parts["vae_encoder"], parts["text_encoder"]
    source = encoder.encode(encoder.pack_image(Image.new("RGB", (48, 32)), SPEC, strength=strength))
    [encoded] = text.encode([text.prepare("a cat")])

    assert parts["dit"].open(SPEC, [encoded.embeds], source).steps == steps


def test_a_mask_has_the_size_of_its_image(parts: dict[str, Any]):
    files = [encode_image(np.zeros((side, 32, 3), np.uint8), "png") for side in (32, 48)]
    with pytest.raises(BadRequest, match="the mask has 32x48, and the image 32x32: make both of one size"):
        parts["vae_encoder"].prepare(memoryview(files[0]), SPEC, ImageChange(memoryview(files[1])))
