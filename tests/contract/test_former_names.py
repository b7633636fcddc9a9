"""Names from before the services had packages of their own work for one more release."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import omnibus_engines
from omnibus.cluster.roles import executor_role
from omnibus.executor.service import load_engine
from omnibus.executor.settings import ExecutorSettings
from omnibus.process.spec import EXIT_MISCONFIGURED
from omnibus.up.preflight import check_declarations

ROOT = Path(__file__).parents[2]
SERVICES = ("encoder", "gateway", "generator", "llm", "planner", "sidecar")
ENGINES = ("sim", "transformers", "vllm")


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_starts_by_its_former_name(service: str):
    """In a checkout or an image; both have the directory ``services``."""
    env = {**os.environ, "OMNIBUS_SERVICE_DRAIN": "x"}
    env.pop("PYTHONPATH", None)
    command = [sys.executable, "-m", f"services.{service}"]

    process = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)

    assert process.returncode == EXIT_MISCONFIGURED
    assert f"FutureWarning: services.{service} is now omnibus_{service}" in process.stderr
    assert f"{service} cannot run: OMNIBUS_SERVICE_DRAIN='x'" in process.stderr


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_is_found_by_its_former_name(name: str):
    assert load_engine(f"services.engines:{name}") is getattr(omnibus_engines, name)


@pytest.mark.parametrize("name", ENGINES)
def test_an_executor_with_the_former_name_of_its_engine_can_change_its_role(name: str):
    role, former = (
        executor_role({"OMNIBUS_EXECUTOR_COMPONENTS": "prefill", "OMNIBUS_EXECUTOR_ENGINE": engine})
        for engine in (f"omnibus_engines:{name}", f"services.engines:{name}")
    )

    assert role is not None
    assert former is not None
    assert role.parts == former.parts


async def test_a_declared_engine_with_its_former_name_has_its_checkpoint_checked(tmp_path: Path):
    declared = tmp_path / "models.json"
    option = '{"components": ["thinker"], "service": "llm", "engine": "services.engines:transformers"}'
    declared.write_text(
        f'{{"models": {{"m": {{"family": "qwen2", "checkpoint": "./missing", "options": {{"L": {option}}}}}}}}}'
    )

    with pytest.raises(Exception, match="missing"):
        await check_declarations(declared, ExecutorSettings())
