"""The first thing that runs in the process of an engine core. Imports nothing of vLLM before ``run_core_process``."""

import gc
import multiprocessing
import os
from typing import Any

import torch

from omnibus.process.parent_death import die_with_parent
from omnibus_models import torchvision_cpu

# A spawned process imports this module for its target, before it imports vLLM for its arguments, and
# vLLM imports torchvision as soon as it sees it.
torchvision_cpu.install_operators()

# Garbage is looked for again and again while modules are read, for a sixth of the time that this takes.
if multiprocessing.parent_process() is not None:
    gc.disable()


def run_core_process(*args: Any, parent: int, **kwargs: Any) -> None:
    """An engine core that dies with ``parent`` and hears none of its terminal's signals."""
    bind_to_parent = die_with_parent(parent=parent)
    if bind_to_parent is not None:
        bind_to_parent()  # the kernel watches the thread that has started this process; see ``VllmEngineProcess``
    os.setpgrp()
    from vllm.v1.engine import core

    from services.llm.vllm.v032 import model_registry, worker

    gc.enable()
    config = kwargs["vllm_config"]
    model_registry.register_models(config.model_config.architectures)
    if config.device_config.device_type == "cpu":
        torch.Generator = worker.Rewinding  # type: ignore[misc]
    core.EngineCoreProc.run_engine_core(*args, **kwargs)
