"""Small models that a fork server loads before it forks executors of them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from omnibus.families import catalog
from omnibus.up.tiny_models import TRAINED
from omnibus_engines import component, preload
from omnibus_engines.component import ComponentSource, Hosted
from omnibus_models import families, late_imports, tiny

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
import sys
import torch
from omnibus_models import torchvision_cpu
from omnibus_models.late_imports import LateModule, import_late
torchvision_cpu.install_operators()
with import_late():
    from scipy.optimize import linear_sum_assignment
    from torch.nn.attention.flex_attention import BlockMask
    from diffusers.models.autoencoders import AutoencoderKLLTX2Audio
    import scipy.stats, torchvision.ops
    @torch.compiler.disable
    def double(number): return 2 * number
    assert not isinstance(torch.ones(1), BlockMask)
    {call}
assert not any(isinstance(module, LateModule) for module in sys.modules.values())
assert double(1) == 2
rows, columns = linear_sum_assignment([[1, 0], [0, 1]])
assert columns.tolist() == [1, 0]
from scipy.optimize import OptimizeResult
assert isinstance(OptimizeResult, type)
assert scipy.stats.norm.cdf(0) == 0.5
from torch.nn.attention.flex_attention import create_block_mask
mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128, device="cpu")
assert isinstance(mask, BlockMask) and type(mask) is not BlockMask
from diffusers.models.autoencoders import AutoencoderKL, AutoencoderKLLTX2Audio as same
assert same is AutoencoderKLLTX2Audio
from torchvision.ops.boxes import box_area
assert box_area(torch.tensor([[0, 0, 2, 3]])).tolist() == [6]
assert torch.distributed.is_available()
"""


@pytest.mark.parametrize("call", ["", "linear_sum_assignment([[1]])"])
def test_a_late_module_is_imported_when_it_is_called_and_others_import_it_as_usual(call):
    subprocess.run([sys.executable, "-c", LATE.format(call=call)], check=True, timeout=60)


SMALL = """
import os, sys
from omnibus_engines import preload
preload.prepare_models(sys.argv[1])
assert len(preload.PRELOADED) == 8, preload.PRELOADED.keys()
heavy = {"sympy", "torch._dynamo", "torch.distributed.tensor", "torch.onnx", "torchvision.models", "scipy.stats"}
assert not heavy & {*sys.modules}, heavy & {*sys.modules}
before = {*sys.modules}
[denoiser] = [loaded for source, (_, loaded) in preload.PRELOADED.items() if source.component == "dit"]
noise = denoiser._draw_noise((1, 2, 2), seed=0)
from omnibus_models.families import _flow_schedule
_flow_schedule.laid_out(denoiser._scheduler, steps=2, tokens=4)
assert before == {*sys.modules}, {*sys.modules} - before
"""


def test_small_models_are_loaded_without_compilers(tmp_path):
    declared = {name: catalog.untrained_declaration(name, str(TRAINED / name)) for name in ("qwen2_5_omni", FAMILY)}
    file = tmp_path / "models.json"
    file.write_text(json.dumps({"models": declared}))

    subprocess.run([sys.executable, "-c", SMALL, str(file)], check=True, timeout=120)


@pytest.mark.parametrize("component", ["vision", "audio", "thinker", "talker", "vocoder"])
def test_a_skeleton_on_the_cpu_gets_the_same_tensors_as_one_on_the_meta_device(component):
    family = families.load_family("qwen2_5_omni")
    token = late_imports.skeletons_on_cpu.set(True)
    try:
        built = family.load(component, TRAINED / "qwen2_5_omni", "cpu", "bfloat16").module
    finally:
        late_imports.skeletons_on_cpu.reset(token)
    loaded = family.load(component, TRAINED / "qwen2_5_omni", "cpu", "bfloat16").module

    tensors, expected = ({**dict(each.named_parameters()), **dict(each.named_buffers())} for each in (built, loaded))
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0)


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
