"""Processors that write prompts of their own: prompts of chats are those that they would write for the same text."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from omnibus_models import miniature
from omnibus_models.families import family_of
from omnibus_models.families._media_parts import choose_class
from tests.auto_families.media_copies import VOCABULARY, make_copy

TEXT = "what is in this picture?"
#: An image before all text, codes of images and a mark after all text.
TYPES = ("blip-2", "chameleon")


@pytest.fixture(scope="module", params=TYPES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small copy without a chat template."""
    directory = tmp_path_factory.mktemp("models") / request.param
    config, processor = make_copy(request.param)
    cls, config = choose_class(config)
    processor.chat_template = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(miniature, "VOCABULARY", VOCABULARY)
        small = miniature.shrink_parts(config)
    small.get_text_config(decoder=True).vocab_size = VOCABULARY
    model = miniature.build_copy(cls, small)
    model.generation_config.eos_token_id = 2
    model.save_pretrained(directory)
    processor.save_pretrained(directory)
    return directory


def answer_whole(checkpoint: Path, image: Any) -> tuple[list[int], Any]:
    """Return the library's tokens of a prompt, and the logits after it."""
    from transformers import AutoModelForMultimodalLM, AutoProcessor

    processor: Any = AutoProcessor.from_pretrained(checkpoint)
    model = AutoModelForMultimodalLM.from_pretrained(checkpoint, dtype=torch.float32)
    text = TEXT if "Blip" in type(model).__name__ else f"<image>{TEXT}"
    inputs = processor(text=[text], images=[image], return_tensors="pt")
    options = {"max_new_tokens": 1, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    return inputs["input_ids"][0].tolist(), model.generate(**inputs, **options).logits[0]


def test_a_chat_is_the_prompt_that_the_processor_writes(checkpoint: Path):
    family = family_of(checkpoint)
    encoder, thinker = family.load("encoder", checkpoint), family.load("thinker", checkpoint)
    image = Image.effect_noise((80, 60), 64).convert("RGB")
    ids, logits = answer_whole(checkpoint, image)
    content = [{"type": "text", "text": TEXT}, {"type": "image"}]

    media = encoder.encode([encoder.processor.process_item(image, "image")])
    prompt = thinker.prompt([{"role": "user", "content": content}])
    layout, prefill = thinker.layout(prompt, media), thinker.assemble_prefill(prompt, media)
    hidden = thinker.forward(
        prefill.inputs[None],
        prefill.positions[:, None],
        None,
        prefill.attention and prefill.attention.mask(0, len(ids)),
    )

    assert list(layout.ids) == ids
    assert (thinker.logits(hidden[:, -1]) - logits).abs().max() < 1e-4


def test_text_without_media_is_what_the_processor_writes(checkpoint: Path):
    from transformers import AutoProcessor

    thinker = family_of(checkpoint).load("thinker", checkpoint)

    prompt = thinker.prompt([{"role": "user", "content": TEXT}])

    expected = AutoProcessor.from_pretrained(checkpoint)(text=[TEXT], return_tensors="pt")["input_ids"]
    assert list(prompt.ids) == expected[0].tolist()
    assert not prompt.modalities
