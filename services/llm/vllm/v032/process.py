"""The first things that run in the processes of an engine. Nothing of vLLM is imported before they are called."""

import gc
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

from omnibus.process.parent_death import die_with_parent
from omnibus_models import torchvision_cpu

# A spawned process imports this module for its target, before it imports vLLM for its arguments, and
# vLLM imports torchvision as soon as it sees it.
torchvision_cpu.install_operators()

# Garbage is looked for again and again while modules are read, for a sixth of the time that this takes.
if multiprocessing.parent_process() is not None:
    gc.disable()

#: vLLM's own function where this process is forked from a core, which has replaced it; else it is still in its place.
_worker_main: Callable[..., None] | None = None


def run_core_process(*args: Any, parent: int, **kwargs: Any) -> None:
    """An engine core that dies with ``parent`` and hears none of its terminal's signals."""
    bind_to_parent = die_with_parent(parent=parent)
    if bind_to_parent is not None:
        bind_to_parent()  # the kernel watches the thread that has started this process; see ``VllmEngineProcess``
    os.setpgrp()
    from vllm.v1.engine import core
    from vllm.v1.executor.multiproc_executor import WorkerProc

    from services.llm.vllm.v032 import model_registry

    gc.enable()
    model_registry.register_models(model_registry.find_architectures(kwargs["vllm_config"]))
    global _worker_main
    _worker_main = WorkerProc.worker_main
    WorkerProc.worker_main = staticmethod(run_worker_process)  # of an engine that is split over several
    core.EngineCoreProc.run_engine_core(*args, **kwargs)


def run_worker_process(*args: Any, **kwargs: Any) -> None:
    """A worker of an engine that is split over several; it ends with its core."""
    from vllm.v1.executor.multiproc_executor import WorkerProc

    from services.llm.vllm.v032 import model_registry

    gc.enable()
    model_registry.register_models(model_registry.find_architectures(kwargs["vllm_config"]))
    (_worker_main or WorkerProc.worker_main)(*args, **kwargs)
