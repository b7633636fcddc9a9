"""Tiny checkpoints are built completely, once, and identically everywhere."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from omnibus.errors import Fatal, NotFound
from omnibus.families.specs import RETRIEVAL
from omnibus_models import families, tiny
from tests import checkpoint_cache
from tests.unit.models import files

#: Weights of vision encoders, and of image generators that follow the LLM.
EYES = (
    *("model.visual.", "model.vision_", "model.multi_modal_projector.", "model.image_newline", "model.aligner."),
    "model.encoder.",
)
HANDS = ("model.vqmodel.", "model.generation_")


@pytest.fixture(autouse=True, scope="module")
def built_anew() -> Iterator[None]:
    """Build checkpoints instead of copying them. These tests are about the build."""
    with pytest.MonkeyPatch.context() as patch:
        checkpoint_cache.build_anew(patch)
        yield


def measure_size(checkpoint: Path) -> int:
    return sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())


def test_tiny_checkpoints_are_small_and_readable_by_all(
    vl: Path, omni: Path, image_checkpoint: Path, edit_checkpoint: Path, ltx2: Path
) -> None:
    for checkpoint in (vl, omni, image_checkpoint, edit_checkpoint, ltx2):
        assert 600 * 1024 < measure_size(checkpoint) < 4 * 1024 * 1024
        assert all(path.stat().st_mode & 0o004 for path in (checkpoint, *checkpoint.rglob("*")))
        assert all(path.stat().st_mode & 0o001 for path in checkpoint.rglob("*") if path.is_dir())


def test_the_same_seed_gives_the_same_weights(vl: Path, tmp_path: Path) -> None:
    again = tiny.build("qwen2_5_vl", tmp_path / "again")
    other = tiny.build("qwen2_5_vl", tmp_path / "other", seed=1)

    weights = [(path / "model.safetensors").read_bytes() for path in (vl, again, other)]
    assert weights[0] == weights[1] != weights[2]


#: Families whose prompts no language model reads.
WITHOUT_LLM = ("dual_encoder", "modular_image", "modular_video", "text_to_speech")


@pytest.fixture(scope="module")
def vl_twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2_5_vl", tmp_path_factory.mktemp("twins") / "vl", llm_seed=1)


@pytest.mark.parametrize("family", [name for name in tiny.FAMILIES if name not in {*RETRIEVAL, *WITHOUT_LLM}])
def test_a_twin_has_another_llm_and_all_else_the_same(family: str, tmp_path: Path) -> None:
    first, twin = (weights_of(tiny.build(family, tmp_path / str(seed), llm_seed=seed)) for seed in (None, 1))

    assert first.keys() == twin.keys()
    changed_names = {name for name in first if not torch.equal(first[name], twin[name])}
    assert changed_names
    assert changed_names == {name for name in first if is_llm(name) and not name.endswith(("norm.weight", "_gate"))}


def is_llm(name: str) -> bool:
    """Return True if a weight belongs to the LLM. That is the one that answers, or reads an image model's prompts."""
    name = name.removeprefix("thinker.").removeprefix("text_encoder/").removeprefix("vision_language_encoder/")
    return name.startswith(("model.", "lm_head.", "language_model.")) and not name.startswith((*EYES, *HANDS))


def weights_of(checkpoint: Path) -> dict[str, torch.Tensor]:
    files = {path: path.relative_to(checkpoint).parts[:-1] for path in checkpoint.rglob("*.safetensors")}
    return {"/".join([*part, name]): weight for path, part in files.items() for name, weight in load_file(path).items()}


def test_a_twin_is_not_taken_for_the_other(vl: Path, vl_twin: Path) -> None:
    assert tiny.build("qwen2_5_vl", vl_twin, llm_seed=1) == vl_twin

    for directory, llm_seed in ((vl, 1), (vl_twin, None), (vl_twin, 2)):
        with pytest.raises(Fatal, match="another checkpoint"):
            tiny.build("qwen2_5_vl", directory, llm_seed=llm_seed)


def test_a_checkpoint_says_what_it_is_as_it_always_did(vl: Path, vl_twin: Path) -> None:
    marker = {"family": "qwen2_5_vl", "seed": 0, "recipe": tiny.RECIPE}

    assert json.loads((vl / tiny.MARKER).read_text()) == marker
    assert json.loads((vl_twin / tiny.MARKER).read_text()) == {**marker, "llm_seed": 1}


def test_a_twin_sees_what_the_other_sees(vl: Path, vl_twin: Path) -> None:
    family = families.family_of(vl)
    eyes = [family.load("vision", path) for path in (vl, vl_twin)]
    picture = files.make_picture(1)

    embeddings = [eye.encode([eye.prepare(memoryview(picture), "image")])[0].embeds for eye in eyes]

    assert torch.equal(*embeddings)


def test_a_complete_checkpoint_is_left_as_it_is(vl: Path) -> None:
    before = (vl / "model.safetensors").stat().st_mtime_ns

    assert tiny.build("qwen2_5_vl", vl) == vl

    assert (vl / "model.safetensors").stat().st_mtime_ns == before


def test_another_checkpoint_is_not_overwritten(vl: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")

    for directory, seed in ((vl, 5), (tmp_path, 0)):
        with pytest.raises(Fatal, match="another checkpoint"):
            tiny.build("qwen2_5_vl", directory, seed)

    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_the_same_checkpoint_by_an_earlier_recipe_gives_way(vl: Path, tmp_path: Path) -> None:
    shutil.copytree(vl, tmp_path / "vl")
    marker = json.loads((vl / tiny.MARKER).read_text())
    (tmp_path / "vl" / tiny.MARKER).write_text(json.dumps({**marker, "recipe": tiny.RECIPE - 1}))
    (tmp_path / "vl" / "old.txt").write_text("of before")

    assert tiny.build("qwen2_5_vl", tmp_path / "vl") == tmp_path / "vl"

    assert [path.name for path in tmp_path.iterdir()] == ["vl"]
    assert not (tmp_path / "vl" / "old.txt").exists()
    assert json.loads((tmp_path / "vl" / tiny.MARKER).read_text()) == marker


def test_builders_that_race_leave_one_checkpoint_and_no_rest(tmp_path: Path) -> None:
    (tmp_path / "vl").mkdir()

    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: tiny.build("qwen2_5_vl", tmp_path / "vl"), range(2)))

    assert paths == [tmp_path / "vl"] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["vl"]
    assert load_file(tmp_path / "vl" / "model.safetensors")


def test_a_build_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from omnibus_models.tiny import qwen2_5_vl

    def fail_halfway(directory: Path, seed: int, llm_seed: int | None) -> None:
        (directory / "config.json").write_text("{}")
        raise OSError("no space left")

    monkeypatch.setattr(qwen2_5_vl, "write", fail_halfway)

    with pytest.raises(OSError, match="space"):
        tiny.build("qwen2_5_vl", tmp_path / "vl")

    assert list(tmp_path.iterdir()) == []


def test_an_unknown_family_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="qwen2_5_omni"):
        tiny.build("mystery", tmp_path / "x")


def test_the_command_line_builds_and_reports(vl: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "omnibus_models.tiny", "qwen2_5_vl"]

    twin = subprocess.run([*command, tmp_path / "twin", "--llm-seed", "1"], capture_output=True, text=True, check=True)
    result = subprocess.run([*command, "--seed", "3", vl], capture_output=True, text=True, check=False)

    assert twin.stdout.strip() == str(tmp_path / "twin")
    assert json.loads((tmp_path / "twin" / "config.json").read_text())["model_type"] == "qwen2_5_vl"
    assert json.loads((Path(twin.stdout.strip()) / tiny.MARKER).read_text())["llm_seed"] == 1
    assert result.returncode == 1
    assert "another checkpoint" in result.stderr
