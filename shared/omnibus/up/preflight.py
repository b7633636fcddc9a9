"""Checks of ``omnibus up`` before anything starts: settings, declarations, checkpoints, device, shared memory.

A mistake is one error here. Without the checks, an executor would end repeatedly.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omnibus import checkpoints
from omnibus.checkpoints.adapters import read_adapter, require_fitting_adapter
from omnibus.checkpoints.gguf_header import LLAMA_CPP, is_gguf
from omnibus.checkpoints.heads import key_value_heads, require_whole_heads
from omnibus.checkpoints.precheck import require_usable
from omnibus.errors import BadRequest, OmnibusError
from omnibus.executor.settings import INT8, ExecutorSettings
from omnibus.families.plugins import current_engine
from omnibus.families.specs import KNOWN, RETRIEVAL
from omnibus.process import run_module
from omnibus.process.spec import python_path
from omnibus.reference.settings import check_environment
from omnibus.settings import SidecarSettings, read_settings
from omnibus.up.shm import SHARED_MEMORY

CHECK_TIMEOUT_SECONDS = 60.0
_DTYPES = ("float32", "bfloat16", "float16", INT8)
_MIB = 1 << 20
_SIMULATED = "omnibus_engines:sim"
_VLLM = "omnibus_engines:vllm"
#: Engines that load safetensors, and adapters as ``omnibus.checkpoints.adapters`` reads them.
_LOADING = {"omnibus_engines:transformers", "omnibus_engines:vllm"}


async def check_start(models: Path | None, nodes: int, environ: Mapping[str, str] | None = None) -> None:
    """Check everything that would keep the system from starting. ``models`` is a file. Raises ``BadRequest`` with the
    problem and its remedy."""
    environ = os.environ if environ is None else environ
    check_environment(environ)
    _check_shared_memory(read_settings(SidecarSettings, environ).arena_mib, nodes)
    await _check_device(read_settings(ExecutorSettings, environ))
    if models is not None:
        await check_declarations(models, read_settings(ExecutorSettings, environ))


async def check_declarations(path: Path, settings: ExecutorSettings) -> None:
    """Check a declarations file and its checkpoints. Raises ``BadRequest`` that begins with ``path``."""
    try:
        models = await run_module.call_module(
            "omnibus_planner.declared", str(path), within=CHECK_TIMEOUT_SECONDS, env={"PYTHONPATH": python_path()}
        )
        for model in models:
            _check_checkpoint(path.parent, model, settings)
            _check_adapters(path.parent, model, settings)
            _check_profile(path.parent, model, settings)
            _check_degrees(path.parent, model, settings)
    except OmnibusError as error:
        raise BadRequest(f"{path}: {error.message}") from error


def _check_checkpoint(directory: Path, model: Mapping[str, Any], settings: ExecutorSettings) -> None:
    """Check a checkpoint for our engines. Other engines have their own kinds of checkpoints."""
    checkpoint, engines = str(model["checkpoint"]), _engines(model, settings)
    if model["family"] not in KNOWN or not engines <= _LOADING:
        return
    if settings.download and checkpoints.is_id(checkpoint):
        return
    try:
        path = _find_directory(directory, checkpoint)
        (checkpoints.require_safetensors if _VLLM in engines else checkpoints.require_named_file)(path)
        if engines != {ExecutorSettings().engine}:
            return
        if path.is_file() and not is_gguf(path):  # the times of a simulated model
            return
        if not path.exists():
            raise BadRequest(
                f"{checkpoint} must be a directory or a GGUF file, or an id of the hub, such as "
                "Qwen/Qwen2.5-VL-7B-Instruct"
            )
        require_usable(path, model["family"], () if model["family"] in RETRIEVAL else KNOWN)
    except OmnibusError as error:
        raise BadRequest(f"model {model['name']}: {error.message}") from error


def _engines(model: Mapping[str, Any], settings: ExecutorSettings) -> set[str]:
    return {current_engine(engine) for engine in (settings.engine, *model["engines"])}


def _find_directory(directory: Path, checkpoint: str) -> Path:
    return (
        directory / checkpoint if checkpoint.startswith(("./", "../")) else checkpoints.resolve_checkpoint(checkpoint)
    )


def _check_adapters(directory: Path, model: Mapping[str, Any], settings: ExecutorSettings) -> None:
    """Check the files of adapters.

    Whether they fit the model is checked when it loads, and by `omnibus models check`.
    """
    is_native = LLAMA_CPP in map(current_engine, model["engines"] or [settings.engine])
    if not is_native and not _engines(model, settings) <= _LOADING:
        return
    for name, checkpoint in model["adapters"].items():
        if settings.download and checkpoints.is_id(checkpoint):
            continue
        try:
            path = _find_directory(directory, checkpoint)
            if is_native:
                require_fitting_adapter(path, _find_directory(directory, str(model["checkpoint"])))
            else:
                read_adapter(path)
        except OmnibusError as error:
            raise BadRequest(f"model {model['name']}, adapter {name}: {error.message}") from error


def _check_degrees(directory: Path, model: Mapping[str, Any], settings: ExecutorSettings) -> None:
    """Check that vLLM can split the language model over each option's GPUs."""
    for option, (engine, degree) in model["degrees"].items():
        if degree < 2 or current_engine(engine or settings.engine) != _VLLM:
            continue
        checkpoint = str(model["checkpoint"])
        if checkpoints.is_id(checkpoint) and settings.download:
            continue
        try:
            heads = key_value_heads(_find_directory(directory, checkpoint))
            if heads is not None:
                require_whole_heads(heads, degree)
        except OmnibusError as error:
            raise BadRequest(f"model {model['name']}, option {option}: {error.message}") from error


def _check_profile(directory: Path, model: Mapping[str, Any], settings: ExecutorSettings) -> None:
    """Check the times and answers of a simulated model."""
    if _SIMULATED not in map(current_engine, model["engines"] or [settings.engine]):
        return
    from omnibus.executor.sim.profile import read_profile

    try:
        read_profile(settings.profile or str(directory / model["checkpoint"]))
    except BadRequest as error:
        raise BadRequest(f"model {model['name']}: {error.message}") from error


def _check_shared_memory(arena_mib: int, nodes: int) -> None:
    if not SHARED_MEMORY.is_dir():
        return
    there = os.statvfs(SHARED_MEMORY)
    free, required_mib = there.f_bavail * there.f_frsize // _MIB, arena_mib * nodes
    if free < required_mib:
        each = f" for each of {nodes} nodes" if nodes > 1 else ""
        raise BadRequest(
            f"{SHARED_MEMORY} has {free} MiB free and {arena_mib} MiB are required{each}: "
            f"free some, or reduce OMNIBUS_SIDECAR_ARENA_MIB"
        )


async def _check_device(settings: ExecutorSettings) -> None:
    if settings.dtype not in _DTYPES:
        choices = " or ".join(f"`{each}`" for each in _DTYPES)
        raise BadRequest(f"OMNIBUS_EXECUTOR_DTYPE must be {choices}, not {settings.dtype!r}")
    if settings.dtype == INT8 and settings.device.partition(":")[0] != "cpu":
        raise BadRequest(f"OMNIBUS_EXECUTOR_DTYPE=int8 is for CPUs: choose another one for {settings.device}")
    if settings.device != ExecutorSettings().device and settings.engine == ExecutorSettings().engine:
        await run_module.call_module("omnibus_models.device", settings.device, within=CHECK_TIMEOUT_SECONDS)
