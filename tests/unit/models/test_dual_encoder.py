"""Limits, padding and special tokens of tiny CLIP and SigLIP."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from omnibus.errors import BadMedia, BadRequest, ContextTooLong, Fatal, NotFound
from omnibus.executor.runner import Item
from omnibus_models import families, tiny
from omnibus_models.examine.report import examine_checkpoint
from omnibus_models.families import _dual_towers
from tests.auto_families.dual_encoders import draw_files, write_checkpoint
from tests.close import assert_close
from tests.unit.encoder.test_sentence_runner import run_component
from tests.unit.jobs import MemoryJob, finish_job

TEXT = "the small white cat"


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("dual_encoder", tmp_path_factory.mktemp("clip") / "it")


@pytest.fixture(scope="module")
def embedder(clip: Path) -> Any:
    return families.family_of(clip).load("embedder", clip)


def embed_text(embedder: Any, text: Any) -> torch.Tensor:
    [vector] = embedder.embed([embedder.prepare_text(text)])
    return vector  # type: ignore[no-any-return]


def test_a_mark_in_a_text_is_text(embedder: Any):
    ids = embedder.prepare_text(f"{TEXT}<|endoftext|>{TEXT}").features["input_ids"].tolist()

    assert ids.count(embedder._batches.tokenizer.eos_token_id) == 1
    other = embed_text(embedder, f"{TEXT}<|endoftext|>hello world")
    assert not torch.allclose(embed_text(embedder, f"{TEXT}<|endoftext|>{TEXT}"), other, atol=1e-3)


def test_tokens_are_those_of_the_text(embedder: Any):
    ids = embedder.prepare_text(TEXT).features["input_ids"].tolist()

    assert_close(embed_text(embedder, ids), embed_text(embedder, TEXT))


def test_texts_have_at_most_the_positions_of_the_tower(embedder: Any):
    longest = "a " * (tiny_context := 30)

    assert embedder.prepare_text(longest).meta["n_tokens"] == tiny_context + 2
    with pytest.raises(ContextTooLong, match="33 tokens; this model takes 32"):
        embedder.prepare_text(f"{longest} a")
    with pytest.raises(BadRequest, match="no prompts"):
        embedder.prepare_text(TEXT, "query")
    with pytest.raises(BadRequest, match="tokens of this model are from 0 to"):
        embedder.prepare_text([1 << 20])


@pytest.mark.behaviour(
    "transformers 5.19",
    "SigLIP pools the last position, so the vector of a text depends on its padding, which the processor leaves out "
    "unless it is asked",
    "pads every text to the length with which the tower was trained",
    source="SiglipTextModel.forward pools last_hidden_state[:, -1]; SiglipProcessor has no default padding",
)
def test_texts_of_siglip_have_the_length_of_its_training(tmp_path: Path):
    checkpoint = write_checkpoint("siglip", tmp_path)
    siglip = families.family_of(checkpoint).load("embedder", checkpoint)
    texts = [siglip.prepare_text(text) for text in ("the cat", "a dog sleeps")]

    assert [len(text.features["input_ids"]) for text in texts] == [64, 64]
    assert [text.meta["n_tokens"] for text in texts] == [4, 5]
    assert all("attention_mask" not in text.features for text in texts)
    assert siglip.prepare_text("the " * 62).meta["n_tokens"] == 64
    with pytest.raises(ContextTooLong, match="this model takes 64"):
        siglip.prepare_text("the " * 63)
    ids = [*siglip.prepare_text("the cat").features["input_ids"][:4].tolist()]
    assert_close(embed_text(siglip, ids), embed_text(siglip, "the cat"))


async def test_equal_images_are_encoded_once_and_have_the_tokens_of_the_tower(clip: Path):
    [file, _] = draw_files()
    data = torch.frombuffer(bytearray(file), dtype=torch.uint8).numpy()
    media = Item({"modality": "image", "mime": "image/png"}, data)

    async with run_component("vision", "dual_encoder", clip, cache_mib=8) as runner:
        jobs = [await finish_job(runner, MemoryJob({"media": media}, wants=("embedding", "tokens"))) for _ in range(2)]

        assert (runner.stats()["cache"]["hits"], runner.stats()["cache"]["misses"]) == (1, 1)
    for job in jobs:
        assert (job.array("embedding").shape, job.outputs["tokens"].items[0].data["value"]) == ((1, 48), 17)
    assert_close(jobs[0].array("embedding"), jobs[1].array("embedding"))


def test_other_media_are_refused(clip: Path):
    vision = families.family_of(clip).load("vision", clip)

    with pytest.raises(BadMedia):
        vision.prepare(memoryview(b"GIF89a"), "image")
    with pytest.raises(BadRequest, match="takes image, not audio"):
        vision.prepare(memoryview(b""), "audio")
    with pytest.raises(NotFound, match="thinker"):
        families.family_of(clip).reader(clip)


def test_a_model_of_one_tower_is_refused(clip: Path):
    module = _dual_towers.build_towers(*_dual_towers.find_class(clip))
    module.text_projection = torch.nn.Linear(module.text_projection.in_features, 8)

    with pytest.raises(Fatal, match="the same width, not 8 and"):
        _dual_towers.try_towers(module, [{"pixel_values": torch.randn(1, 3, 32, 32)} for _ in range(2)])


def test_a_report_has_both_towers(clip: Path):
    report = examine_checkpoint(clip)

    assert (report.family, {name: part.problem for name, part in report.parts.items()}) == (
        "dual_encoder", {"vision": "", "embedder": ""},
    )  # fmt: skip
    assert all(part.parameters and not part.missing for part in report.parts.values())


@pytest.mark.parametrize(
    ("config", "family"),
    [
        ({"model_type": "clip"}, "dual_encoder"),
        ({"model_type": "siglip2", "architectures": ["Siglip2Model"]}, "dual_encoder"),
        ({"model_type": "blip", "architectures": ["BlipModel"]}, "dual_encoder"),
        ({"model_type": "blip", "architectures": ["BlipForConditionalGeneration"]}, "multimodal_lm"),
    ],
)
def test_the_class_of_a_checkpoint_decides(config: dict[str, Any], family: str, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert families.family_of(tmp_path).name == family
