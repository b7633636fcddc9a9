"""Entry points of an engine's processes. Nothing of vLLM is imported before they are called."""

import gc
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

from omnibus.process.parent_death import die_with_parent
from omnibus_models import torchvision_cpu

# A spawned process imports this module for its target, before it imports vLLM for its arguments. vLLM imports
# torchvision if it is installed.
torchvision_cpu.install_operators()

# Garbage collection during imports takes a sixth of their time.
if multiprocessing.parent_process() is not None:
    gc.disable()

#: vLLM's own function, if this process was forked from a core, which has replaced it; else None, as it is in place.
_worker_main: Callable[..., None] | None = None


def run_core_process(*args: Any, parent: int, **kwargs: Any) -> None:
    """Run an engine core that dies with ``parent``.

    It ignores signals from the parent's terminal.
    """
    bind_to_parent = die_with_parent(parent=parent)
    if bind_to_parent is not None:
        bind_to_parent()  # the kernel watches the thread that started this process; see ``VllmEngineProcess``
    os.setpgrp()
    from vllm.v1.engine import core
    from vllm.v1.executor.multiproc_executor import WorkerProc

    from omnibus_llm.vllm.v032 import model_registry

    gc.enable()
    model_registry.register_models(model_registry.find_architectures(kwargs["vllm_config"]))
    global _worker_main
    _worker_main = WorkerProc.worker_main
    WorkerProc.worker_main = staticmethod(run_worker_process)  # for an engine with several workers
    core.EngineCoreProc.run_engine_core(*args, **kwargs)


def run_worker_process(*args: Any, **kwargs: Any) -> None:
    """Run a worker of an engine that has several; it ends with its core."""
    from vllm.v1.executor.multiproc_executor import WorkerProc

    from omnibus_llm.vllm.v032 import model_registry

    gc.enable()
    model_registry.register_models(model_registry.find_architectures(kwargs["vllm_config"]))
    (_worker_main or WorkerProc.worker_main)(*args, **kwargs)
