"""Library faults with a workaround, each in one place; a test here fails when its fault is fixed.

libraries.md lists them all, including those with tests next to their families.
"""

from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from transformers import GenerationConfig, PreTrainedModel, Qwen2ForCausalLM

from omnibus_models import loading, tiny
from tests import models_oracle as oracle
from tests.oracles import glm_image
from tests.unit.models import files

ROOT = Path(__file__).parents[3]
PLACES = (ROOT, ROOT / "shared" / "omnibus_models", ROOT / "tests" / "unit" / "models")
TEXT = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
PICTURE = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}]


def test_the_list_of_faults_names_places_and_tests_that_there_are() -> None:
    page = Path(__file__).with_name("libraries.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if "| `test_" in line]

    references = [
        cell.strip("`").split(": ") for _, place, test in rows for cell in (place, test) if cell != "not served"
    ]
    for file, *words in references:
        [path] = [path for path in PLACES if (path / file).is_file()]
        assert all(word in (path / file).read_text() for word in words), (file, words)
    here = {name for name in globals() if name.startswith("test_") and "_still_" in name}
    assert here == {word for file, *words in references for word in words if file == Path(__file__).name}


def test_a_load_still_replaces_methods_for_everybody(tmp_path: Path) -> None:
    """``loading.TURN``: two concurrent loads could leave the replacement in place."""
    checkpoint = tiny.build("qwen2", tmp_path / "qwen2")
    methods: list[Any] = []

    class TiedWeightsProbe(Qwen2ForCausalLM):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            methods.append(PreTrainedModel.tie_weights)

    before = PreTrainedModel.tie_weights
    loading.load_model(TiedWeightsProbe, checkpoint)

    assert methods == [methods[0]] != [before]
    assert PreTrainedModel.tie_weights is before


def test_positions_of_a_request_are_still_kept_on_the_module(vl: Path) -> None:
    """Families count them per request; on the module, one request's positions would apply to the next one."""
    model, _ = oracle._load_vl(vl)
    deltas = []
    for messages, media in ((PICTURE, {"image": [files.make_picture(1)]}), (TEXT, {})):
        with torch.no_grad():
            model(**oracle.vl_inputs(vl, messages, media))
        deltas.append(int(model.model.rope_deltas))

    # A text alone sets no delta.
    assert deltas[0] == deltas[1] != 0


@pytest.mark.parametrize("name", ["Qwen2VL", "Qwen2_5_VL"])
def test_text_after_a_long_video_still_begins_inside_its_positions(name: str) -> None:
    model = getattr(transformers, f"{name}Model")
    config = getattr(transformers, f"{name}Config")()
    counter = SimpleNamespace(config=config)
    counter.get_vision_position_ids = MethodType(model.get_vision_position_ids, counter)
    kinds = torch.tensor([[0, *[2] * 30, 0]])

    positions, _ = model.get_rope_index(counter, kinds, kinds, video_grid_thw=torch.tensor([[30, 2, 2]]))

    assert positions[0, 0, -1] == 2 < positions.max()


def generate_codes(omni: Path, messages: Any, media: Any, **changed: Any) -> torch.Tensor:
    """Return the codes of a spoken answer; ``changed`` renames inputs, or omits those set to None."""
    model, _ = oracle._load_omni(omni)
    inputs = {**oracle.omni_inputs(omni, messages, media), **changed}
    vocoder_inputs: list[torch.Tensor] = []
    hook = model.token2wav.register_forward_pre_hook(lambda _module, args: vocoder_inputs.append(args[0]))
    settings = {"thinker_max_new_tokens": 4, "thinker_do_sample": False, "talker_max_new_tokens": 8}
    try:
        model.generate(**{k: v for k, v in inputs.items() if v is not None}, **settings, talker_do_sample=False)
    finally:
        hook.remove()
    return vocoder_inputs[0]


def test_qwen2_5_omni_still_does_not_generate_from_pictures_as_its_processor_gives_them(omni: Path) -> None:
    """``tests.models_oracle`` renames them."""
    with pytest.raises(ValueError, match="pixel_values"):
        generate_codes(omni, PICTURE, {"image": [files.make_picture(1)]})


def test_the_talker_of_qwen2_5_omni_still_goes_without_its_marks_when_nobody_gives_it_a_mask(omni: Path) -> None:
    """``qwen2_5_omni.Talker`` always puts them there. The library does so for requests of a batch."""
    masked_codes, unmasked_codes = generate_codes(omni, TEXT, {}), generate_codes(omni, TEXT, {}, attention_mask=None)

    assert not torch.equal(masked_codes, unmasked_codes)


def test_the_vocoder_of_qwen2_5_omni_still_draws_its_noise_for_all_from_one_source(omni_parts: dict[str, Any]) -> None:
    """``vocoding.sample`` receives the noise, so that no request changes another one's."""
    vocoder = omni_parts["vocoder"]
    voice = next(iter(vocoder.voices.values()))

    def draw_sound() -> torch.Tensor:
        with torch.no_grad():
            sound: torch.Tensor = vocoder.dit.sample(
                voice["cond"].float(), voice["ref_mel"].float(), quantized_code=torch.ones(1, 6, dtype=torch.long)
            )
        return sound

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first, second = draw_sound(), draw_sound()
        torch.manual_seed(1)
        again = draw_sound()

    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_the_talker_of_qwen3_omni_alone_is_still_loaded_without_its_experts(tmp_path: Path) -> None:
    """``qwen3_omni_moe`` loads it as a part of the whole model. The library recognises the experts of that."""
    from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeTalkerForConditionalGeneration

    checkpoint = tiny.build("qwen3_omni_moe", tmp_path / "omni")
    config = Qwen3OmniMoeConfig.from_pretrained(checkpoint)
    _, report = Qwen3OmniMoeTalkerForConditionalGeneration.from_pretrained(
        checkpoint, config=config.talker_config, key_mapping={r"^talker\.": ""}, output_loading_info=True
    )

    assert any("experts" in name for name in report["missing_keys"])


def test_settings_of_generation_that_are_said_to_be_the_models_still_lose_what_is_more(tmp_path: Path) -> None:
    """``tiny._qwen.set_ends`` therefore marks them as not the model's own."""
    values = []
    for of_model in (True, False):
        config = GenerationConfig(generation_kwargs={"boi_token_id": 3})
        config._from_model_config = of_model
        config.save_pretrained(tmp_path / str(of_model))
        values.append(getattr(GenerationConfig.from_pretrained(tmp_path / str(of_model)), "generation_kwargs", None))

    assert values == [None, {"boi_token_id": 3}]


def test_the_pipeline_of_glm_image_still_does_not_take_a_picture(tmp_path: Path) -> None:
    """The model requires one image at a time; the pipeline joins them. Until that is fixed, only text guides GLM-Image
    here.
    """
    pipe = glm_image.load_pipeline(tiny.build("glm_image", tmp_path / "glm"))
    picture = Image.new("RGB", (64, 64))

    with pytest.raises(RuntimeError, match="channels"):
        pipe("a red square", image=[picture], width=64, height=64, num_inference_steps=2)
