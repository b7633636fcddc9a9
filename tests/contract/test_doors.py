"""Importing a room loads no heavy libraries except its own.

The import linter checks which module names which. It cannot detect that importing ``omnibus.bus`` also runs
``omnibus/__init__.py``. A fresh interpreter can.
"""

import subprocess
import sys

import pytest

HEAVY = {
    "av",
    "diffusers",
    "fastapi",
    "huggingface_hub",
    "nats",
    "openai",
    "PIL",
    "pydantic",
    "redis",
    "scipy",
    "starlette",
    "tokenizers",
    "torch",
    "torchvision",
    "transformers",
    "ucxx",
    "uvicorn",
    "vllm",
}
HTTP = {"fastapi", "starlette", "uvicorn", "pydantic"}

#: Room to the heavy libraries that it may load. Engines load theirs when a component is loaded.
ALLOWED: dict[str, set[str]] = {
    "omnibus": set(),
    "omnibus.app": set(),
    "omnibus.app.worker": {"pydantic"},
    "omnibus.bus": set(),
    "tests.memory_bus": set(),
    "omnibus.bus.nats": {"nats"},
    "omnibus.families.catalog": set(),
    "omnibus.checkpoints": set(),
    "omnibus.process.run_module": set(),
    "omnibus.cli": set(),
    "omnibus.errors": set(),
    "omnibus.executor": set(),
    "omnibus.executor.service": {"nats"},
    "omnibus.executor.python_task": set(),
    "omnibus.executor.sim": set(),
    "omnibus.graph": set(),
    "omnibus.metrics": set(),
    "omnibus.plan": set(),
    "omnibus.families.plugins": set(),
    "omnibus.profile": set(),
    "omnibus.profiling": set(),
    "omnibus.service": set(),
    "omnibus.settings": set(),
    "omnibus.store": {"redis"},
    "omnibus.task": {"pydantic"},
    "omnibus.tensors": set(),
    "omnibus.tensors.client": set(),
    "omnibus.up": set(),
    "omnibus.up.infra": set(),
    "omnibus.up.supervisor": set(),
    "omnibus_models": set(),
    "omnibus_models.examine": set(),
    "omnibus_real": {"pydantic"},
    "omnibus_engines.registry": set(),
    "omnibus_gateway.__main__": HTTP | {"nats", "redis"},
    "omnibus_planner.__main__": {"nats", "redis", "scipy"},
    "omnibus_encoder.__main__": {"nats"},
    "omnibus_llm.__main__": {"nats"},
    "omnibus_generator.__main__": {"nats"},
    "omnibus_sidecar.__main__": {"nats"},
}


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_opens_only_its_own_doors(room):
    code = f"import sys, importlib; importlib.import_module({room!r}); print(*sys.modules)"

    modules = subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60).split()

    assert HEAVY.intersection(modules) <= ALLOWED[room]
