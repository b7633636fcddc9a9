"""Profile a real model briefly; the planner can use the result."""

import json
from pathlib import Path

import msgspec
import pytest

from omnibus import profile
from omnibus.settings import StoreSettings
from omnibus.store import Store
from omnibus_planner.declared.model import DeclaredModel, Model
from omnibus_planner.declared.planned_spec import GpuType
from omnibus_planner.optimize.planner import Planner
from tests.e2e.profiling.running import run_profile, start_profile
from tests.e2e.system import ROOT, VL

pytestmark = pytest.mark.e2e


@pytest.mark.nightly
@pytest.mark.timeout(200)
def test_nothing_comes_out_of_a_cache_while_it_is_measured(tmp_path: Path):
    arguments = (
        VL, "--workload", str(ROOT / "examples" / "workload.json"), "--option", "EL",
        "--seconds", "0.2", "--requests", "3", "--most", "4", "--out", "vl.json",
    )  # fmt: skip
    with start_profile(tmp_path, *arguments) as run:
        run.until("EL: 4 at a time")
        environment = run.executor("EL").environ()
        code, output = run.end()

    assert code == 0, run.said
    assert environment["OMNIBUS_EXECUTOR_CACHE_MIB"] == "0"
    assert environment["OMNIBUS_VLLM_PREFIX_CACHE"] == "false"
    assert "from caches" not in output
    model_profile = profile.decode_profile((tmp_path / "vl.json").read_bytes())
    assert {*model_profile.lines} == {"vision", "thinker"}
    assert model_profile.kv is not None
    assert (model_profile.kv.component, model_profile.kv.memory_gb) == ("thinker", 0.0)
    assert model_profile.kv.gb_per_token > 0


@pytest.mark.timeout(200)
async def test_the_tiny_model_is_measured_and_planned(tmp_path: Path, valkey_url: str):
    code, output, messages = run_profile(
        tmp_path, VL, "--workload", str(ROOT / "examples" / "workload.json"),
        "--seconds", "0.2", "--requests", "3", "--most", "4", "--out", "vl.json", "--store", valkey_url,
    )  # fmt: skip

    assert code == 0, messages
    model_profile = profile.decode_profile((tmp_path / "vl.json").read_bytes())
    assert set(model_profile.options) == {"E", "L", "EL"}
    assert all(option.rate > 0 and option.weights_gb > 0 and option.curve for option in model_profile.options.values())
    assert all(
        work.seconds > 0 and work.latency > 0 for option in model_profile.options.values() for work in option.work
    )
    assert model_profile.types["vision+thinker"].quantities["image_tokens"] > 10
    assert "vl.json" in output
    assert predict_rate(model_profile) > 0
    store = Store(StoreSettings(url=valkey_url))
    assert await store.profile(VL) == model_profile
    await store.close()


def predict_rate(model_profile: profile.ModelProfile) -> float:
    """Rate that the planner predicts for three places on processors."""
    declaration = {"family": "qwen2_5_vl", "checkpoint": model_profile.checkpoint, "planned": {"profile": "vl.json"}}
    model = Model(VL, msgspec.convert(declaration, DeclaredModel))
    plans = Planner({VL: model}, {VL: model_profile}, {"cpu": GpuType(count=3)}, {}).plan(None, {})
    assert json.dumps(plans.explain)
    return plans.rate[VL]
