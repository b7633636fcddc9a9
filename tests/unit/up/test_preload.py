"""Small models that a fork server loads before it forks executors of them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from omnibus.families import catalog
from omnibus.up.tiny_models import TRAINED
from omnibus_engines import component, preload
from omnibus_engines.component import ComponentSource, Hosted
from omnibus_models import tiny

FAMILY = "qwen_image"


@pytest.fixture(autouse=True)
def preloaded(monkeypatch: pytest.MonkeyPatch) -> dict[ComponentSource, object]:
    """The loaded components of one test."""
    mine: dict[ComponentSource, object] = {}
    monkeypatch.setattr(component, "PRELOADED", mine)
    monkeypatch.setattr(preload, "PRELOADED", mine)
    return mine


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TRAINED / FAMILY, tmp_path / FAMILY))


def declare_models(directory: Path, checkpoint: Path) -> str:
    file = directory / "models.json"
    file.write_text(json.dumps({"models": {"m": catalog.untrained_declaration(FAMILY, str(checkpoint))}}))
    return str(file)


async def load_vae(checkpoint: Path) -> object:
    hosted: Hosted[object] = Hosted(ComponentSource("vae", FAMILY, checkpoint, "cpu", "float32"), 1)
    await hosted.load()
    await hosted.close()
    return hosted.model


async def test_an_executor_takes_a_loaded_component_once(tmp_path, checkpoint, preloaded):
    preload.prepare_models(declare_models(tmp_path, checkpoint))

    assert {source.component for source in preloaded} == {"text_encoder", "dit", "vae"}
    [model] = [loaded for source, (_, loaded) in preloaded.items() if source.component == "vae"]
    assert await load_vae(checkpoint) is model
    assert await load_vae(checkpoint) is not model


async def test_a_checkpoint_that_has_changed_since_is_read_again(tmp_path, checkpoint, preloaded):
    preload.prepare_models(declare_models(tmp_path, checkpoint))
    [model] = [loaded for source, (_, loaded) in preloaded.items() if source.component == "vae"]

    (checkpoint / "vae" / "config.json").touch()

    assert await load_vae(checkpoint) is not model


def test_a_component_that_cannot_be_loaded_is_left_to_its_executors(tmp_path, checkpoint, preloaded, capsys):
    (checkpoint / "vae" / "config.json").write_text("{")

    preload.prepare_models(declare_models(tmp_path, checkpoint))

    assert {source.component for source in preloaded} == {"text_encoder"}  # the denoiser reads that file, too
    assert f"vae of {checkpoint} is left to its executors: " in capsys.readouterr().err


@pytest.mark.parametrize("reason", ["large", "on a GPU", "no declarations", "invalid declarations"])
def test_other_models_are_not_loaded(tmp_path, checkpoint, preloaded, monkeypatch, reason):
    file = declare_models(tmp_path, checkpoint)
    if reason == "large":
        monkeypatch.setattr(preload, "MAX_BYTES", 1000)
    elif reason == "on a GPU":
        monkeypatch.setenv("OMNIBUS_EXECUTOR_DEVICE", "cuda")
    else:
        Path(file).write_text(
            "{" if reason == "no declarations" else '{"models": {"m": [], "n": {"components": "vae"}}}'
        )

    preload.prepare_models(file)

    assert preloaded == {}


LATE = """
import os, sys
from omnibus_models.late_imports import LATE, import_late
with import_late():
    from scipy.optimize import linear_sum_assignment
    import scipy.stats
assert not {*LATE} & {*sys.modules}
rows, columns = linear_sum_assignment([[1, 0], [0, 1]])
assert columns.tolist() == [1, 0]
from scipy.optimize import OptimizeResult
assert isinstance(OptimizeResult, type)
assert scipy.stats.norm.cdf(0) == 0.5
"""


def test_a_late_module_is_imported_when_it_is_called_and_others_import_it_as_usual():
    subprocess.run([sys.executable, "-c", LATE], check=True, timeout=60)


THREADS = """
import os, sys
from omnibus_engines import preload
before = os.listdir("/proc/self/task")
preload.prepare_models(sys.argv[1])
assert preload.PRELOADED and os.listdir("/proc/self/task") == before
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists threads there")
def test_a_load_leaves_no_threads_which_would_keep_the_fork_server_from_forking(tmp_path):
    janus = tiny.build("janus", tmp_path / "janus")
    file = tmp_path / "models.json"
    file.write_text(json.dumps({"models": {"m": catalog.model_declaration("janus", str(janus))}}))

    command = [sys.executable, "-c", THREADS, str(file)]
    subprocess.run(command, check=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
