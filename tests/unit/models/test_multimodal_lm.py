"""Models with encoders, without code for their class: apart they compute what the library computes whole."""

import inspect
import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from omnibus.checkpoints.precheck import read_modalities
from omnibus.errors import BadRequest, Fatal
from omnibus.families.specs import KNOWN
from omnibus_llm.engine import media_admission
from omnibus_models import tiny
from omnibus_models.contract import Encoded
from omnibus_models.families import load_family
from omnibus_models.families._item_processor import ItemProcessor, sample_items
from omnibus_models.families._media_parts import find_class, unused_modules
from omnibus_models.families._media_rows import join_items, pack_output, split_output
from omnibus_planner.declared.model import find_encoders
from tests.close import assert_close
from tests.e2e.questions import make_image, make_question, make_video


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen3_vl", tmp_path_factory.mktemp("models") / "vl")


@pytest.fixture(scope="module")
def encoder(checkpoint: Path) -> Any:
    return load_family("multimodal_lm").load("encoder", checkpoint)


@pytest.fixture(scope="module")
def thinker(checkpoint: Path) -> Any:
    return load_family("multimodal_lm").load("thinker", checkpoint)


def prepare_media(encoder: Any, *media: tuple[str, bytes]) -> list[Any]:
    return [encoder.prepare(memoryview(data), kind) for kind, data in media]


def test_components_hold_what_they_use_and_nothing_twice(checkpoint: Path, encoder: Any, thinker: Any):
    own = load_family("qwen3_vl")

    assert encoder.parameters == own.load("vision", checkpoint).parameters
    assert thinker.parameters == own.load("thinker", checkpoint).parameters


def test_prompts_are_those_of_the_family_written_by_hand(checkpoint: Path, encoder: Any, thinker: Any):
    own = load_family("qwen3_vl")
    own_encoder, own_thinker = own.load("vision", checkpoint), own.load("thinker", checkpoint)
    question = make_question(make_image(1, 90, 60), "and", make_video(1, 1), make_image(2, 64, 64), "describe")
    media = [part for part in question.parts if part[0] != "text"]
    prompt = thinker.prompt(question.plain)

    given = thinker.assemble_prefill(prompt, encoder.encode(prepare_media(encoder, *media)))
    expected = own_thinker.assemble_prefill(prompt, own_encoder.encode(prepare_media(own_encoder, *media)))

    assert torch.equal(given.positions, expected.positions)
    assert given.delta == expected.delta
    assert (given.inputs - expected.inputs[:, : thinker.width]).abs().max() < 1e-5
    hidden = [
        each.forward(
            one.inputs[None], one.positions[:, None], None, one.attention and one.attention.mask(0, len(one.inputs))
        )
        for each, one in ((thinker, given), (own_thinker, expected))
    ]
    assert (hidden[0] - hidden[1]).abs().max() < 1e-4


def test_a_batch_equals_its_single_items(encoder: Any):
    items = prepare_media(encoder, make_image(1, 90, 60), make_video(1, 1), make_image(2, 64, 64))

    batch = encoder.encode(items)

    for item, encoded in zip(items, batch, strict=True):
        assert_close(encoder.encode([item])[0].embeds, encoded.embeds)
        assert encoded.meta["n_tokens"] == len(encoded.embeds)


def test_an_item_that_the_processor_does_not_take_is_refused(encoder: Any):
    with pytest.raises(BadRequest, match="does not take this image") as refusal:
        encoder.processor.process_item(np.zeros((0, 3)), "image")

    assert refusal.value.__cause__ is not None


def test_other_modalities_are_refused(encoder: Any):
    with pytest.raises(BadRequest, match="takes image and video, not audio"):
        encoder.prepare(memoryview(b"x"), "audio")


@pytest.mark.parametrize("change", [{"form": {}}, {"form": None}, {"n_tokens": 1}, {"expansion": {}}])
def test_items_with_strange_metadata_are_refused(encoder: Any, thinker: Any, change: dict[str, Any]):
    question = make_question(make_image(1), "describe")
    [item] = encoder.encode(prepare_media(encoder, question.parts[0]))

    with pytest.raises(BadRequest):
        thinker.assemble_prefill(thinker.prompt(question.plain), [Encoded(item.embeds, {**item.meta, **change})])


def test_a_model_that_computes_several_images_otherwise_takes_one(
    encoder: Any, thinker: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(thinker, "alone", frozenset({"image"}))
    question = make_question(make_image(1), "and", make_image(2), make_video(1, 1), "describe")
    media = encoder.encode(prepare_media(encoder, *(part for part in question.parts if part[0] != "text")))

    with pytest.raises(BadRequest, match="takes one image in a prompt, not several"):
        thinker.assemble_prefill(thinker.prompt(question.plain), media)
    single = make_question(make_image(1), make_video(1, 1), "describe")
    assert thinker.assemble_prefill(thinker.prompt(single.plain), [media[0], media[2]]).media.any()


def test_an_answer_after_a_prompt_with_rows_for_single_layers_can_be_resumed(encoder: Any, thinker: Any):
    question = make_question(make_image(1), "describe")
    prefill = thinker.assemble_prefill(
        thinker.prompt(question.plain), encoder.encode(prepare_media(encoder, question.parts[0]))
    )
    length, mask = len(prefill.inputs), prefill.attention.mask(0, len(prefill.inputs) + 2)
    more = length + prefill.delta + torch.arange(2).expand(len(prefill.positions), -1)
    inputs = torch.cat([prefill.inputs, thinker.embed(torch.tensor([5, 6]))])[None]
    positions = torch.cat([prefill.positions, more], dim=1)[:, None]

    whole = thinker.forward(inputs, positions, thinker.new_cache(), mask)
    cache = thinker.new_cache()
    thinker.forward(inputs[:, :length], positions[..., :length], cache, mask)
    after = thinker.forward(inputs[:, length:], positions[..., length:], cache, None)

    assert (whole[:, length:] - after).abs().max() < 1e-5


def test_a_class_that_computes_other_logits_apart_is_refused(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("OMNIBUS_CACHE", str(tmp_path))
    cls, config = find_class(checkpoint)
    forward, generate = cls.forward, cls.generate
    generating = []

    def halve_rows(self: Any, *args: Any, mm_encoder_outputs: Any = None, **options: Any) -> Any:
        if mm_encoder_outputs and not generating:
            mm_encoder_outputs = {
                name: type(rows)(**{**rows, "pooler_output": [part * 0.5 for part in rows["pooler_output"]]})
                for name, rows in mm_encoder_outputs.items()
            }
        return forward(self, *args, mm_encoder_outputs=mm_encoder_outputs, **options)

    def generate_whole(self: Any, **options: Any) -> Any:
        generating.append(True)
        try:
            return generate(self, **options)
        finally:
            generating.pop()

    halve_rows.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    monkeypatch.setattr(cls, "forward", halve_rows)
    monkeypatch.setattr(cls, "generate", generate_whole)
    verdicts = media_admission.try_parts(cls, config, ItemProcessor.load(checkpoint))

    assert [verdict.mode for verdict in verdicts.values()] == [None, None]


def test_a_verdict_is_found_once(checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("OMNIBUS_CACHE", str(tmp_path))
    cls, config = find_class(checkpoint)
    processor = ItemProcessor.load(checkpoint)
    first = media_admission.find_media_verdicts(cls, config, processor)
    monkeypatch.setattr(media_admission, "try_parts", lambda *_: pytest.fail("tried again"))

    assert media_admission.find_media_verdicts(cls, config, processor) == first
    assert first.keys() == {"image", "video"}


def test_a_model_that_no_modality_of_which_comes_apart_is_refused(thinker: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(media_admission, "find_media_verdicts", lambda *_: {})

    with pytest.raises(Fatal, match="Qwen3VLForConditionalGeneration of transformers .* cannot be served in parts"):
        media_admission.admit_thinker(thinker)


def test_rows_of_several_items_are_joined_as_an_encoder_would_return_them():
    first, second, mark = torch.randn(2, 3, 4), torch.randn(1, 3, 4), torch.randn(2, 4)
    layers = [torch.randn(6, 5), torch.randn(6, 5)], [torch.randn(3, 5), torch.randn(3, 5)]
    outputs = [
        {"pooler_output": rows, "deepstack": deep, "marks": mark, "last_hidden_state": rows}
        for rows, deep in zip((first, second), layers, strict=True)
    ]

    joined = join_items([pack_output(output) for output in outputs])

    assert torch.equal(joined.pooler_output, torch.cat([first, second]))
    assert all(
        torch.equal(layer, torch.cat(parts))
        for layer, parts in zip(joined.deepstack, zip(*layers, strict=True), strict=True)
    )
    assert torch.equal(joined.marks, mark)
    assert joined.hidden_states is None


def test_the_output_of_a_batch_is_split_by_the_parts_of_its_items():
    rows, layers = [torch.randn(3, 4), torch.randn(2, 4)], [torch.randn(5, 4)]
    output = {"pooler_output": rows, "deepstack": [layers[0][:2]], "last_hidden_state": torch.randn(1, 5, 4)}

    first, second = split_output(output, [[3, 2], [1, 1]])

    assert [torch.equal(first["pooler_output"][0], rows[0]), torch.equal(second["pooler_output"][0], rows[1])] == [
        True
    ] * 2
    assert torch.equal(second["deepstack"][0], layers[0][1:2])
    with pytest.raises(ValueError, match="not those of 2 items"):
        split_output({"pooler_output": torch.randn(4, 4)}, [[3, 2], [1, 1]])


def test_a_reader_has_no_layers_and_the_same_positions(checkpoint: Path, encoder: Any, thinker: Any):
    question = make_question(make_image(1, 90, 60), "and", make_video(1, 1), "describe")
    media = encoder.encode(prepare_media(encoder, *(part for part in question.parts if part[0] != "text")))
    reader = load_family("multimodal_lm").reader(checkpoint)

    layout = reader.layout(reader.prompt(question.plain), media)

    prefill = thinker.assemble_prefill(thinker.prompt(question.plain), media)
    assert {name for name, _ in reader.module.named_parameters()} == {"model.language_model.embed_tokens.weight"}
    assert torch.equal(layout.positions, prefill.positions)
    assert (layout.delta, torch.equal(layout.media, prefill.media)) == (prefill.delta, True)
    assert int(layout.media.sum()) == sum(len(item.embeds) for item in media)


def test_prompts_with_masks_of_their_own_are_not_for_other_engines(tmp_path: Path):
    with pytest.raises(Fatal, match="own class of transformers can prepare its prompts"):
        load_family("multimodal_lm").reader(tiny.build("gemma3", tmp_path / "gemma"))


def test_types_whose_tokens_differ_in_vllm_are_refused_for_it(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "cohere2_vision"}))

    with pytest.raises(Fatal, match="other tokens than transformers for cohere2_vision"):
        load_family("multimodal_lm").reader(tmp_path)


def test_padding_of_an_item_is_not_sent():
    rows, mask = torch.randn(1, 4, 2), torch.tensor([[True, True, True, False]])

    packed = pack_output({"pooler_output": rows, "attention_mask": mask})
    joined = join_items([packed, pack_output({"pooler_output": rows, "attention_mask": ~mask})])

    assert torch.equal(packed.rows, rows[0, :3])
    assert torch.equal(joined.pooler_output, rows)
    assert joined.attention_mask.tolist() == [[True] * 4]


def test_a_mask_may_mark_padding():
    rows, padding = torch.randn(1, 4, 2), torch.tensor([[False, False, False, True]])

    joined = join_items([pack_output({"pooler_output": rows, "mask": padding}, marks_padding=True)])

    assert torch.equal(joined.pooler_output, rows[:, :3])
    assert joined.mask.tolist() == [[False] * 3]


def test_rows_with_the_numbers_of_their_layers_keep_them():
    first, second = torch.randn(3, 4), torch.randn(2, 4)
    outputs = [{"hidden_states": (rows,), "deep": [(9, [rows]), (3, [2 * rows])]} for rows in (first, second)]

    [(ninth, one), (third, other)] = join_items([pack_output(output) for output in outputs]).deep

    assert (ninth, third) == (9, 3)
    assert torch.equal(torch.cat(one), torch.cat([first, second]))
    assert torch.equal(torch.cat(other), 2 * torch.cat([first, second]))


def test_a_module_that_both_components_use_stays_in_both():
    module = nn.ModuleDict({"tower": nn.Linear(2, 2), "shared": nn.Linear(2, 2), "decoder": nn.Linear(2, 2)})
    used = {"shared.weight", "tower.weight", "tower.bias"}

    assert [*unused_modules(module, used, [module["decoder"]])] == ["decoder"]


def test_modalities_of_a_checkpoint_are_read_from_its_processor(checkpoint: Path, tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "glmasr"}')
    (tmp_path / "preprocessor_config.json").write_text('{"feature_extractor_type": "WhisperFeatureExtractor"}')

    assert read_modalities(checkpoint) == {"image", "video"}
    encoders = KNOWN["multimodal_lm"].encoders
    assert find_encoders("multimodal_lm", str(tmp_path), encoders) == {"audio": "encoder"}
    assert find_encoders("multimodal_lm", "nobody/nothing", encoders) == encoders
    assert find_encoders("llava", str(tmp_path), KNOWN["llava"].encoders) == {"image": "vision"}


@pytest.mark.skipif(find_spec("torchaudio") is not None, reason="torchaudio is installed")
def test_a_library_that_a_processor_lacks_is_named(checkpoint: Path, tmp_path: Path):
    broken = Path(shutil.copytree(checkpoint, tmp_path / "broken"))
    kinds = {"processor_class": "GraniteSpeechProcessor", "feature_extractor_type": "GraniteSpeechFeatureExtractor"}
    (broken / "processor_config.json").unlink(missing_ok=True)
    (broken / "preprocessor_config.json").write_text(json.dumps(kinds))

    with pytest.raises(Fatal, match="needs a library: .*torchaudio"):
        ItemProcessor.load(broken)


def test_samples_for_trials_differ_in_size():
    sizes = [[item.size for item in sample_items("image")], [np.size(item) for item in sample_items("audio")]]

    assert all(first != second for first, second in sizes)
