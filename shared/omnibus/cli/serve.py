"""``omnibus serve``: examines one checkpoint, chooses how this machine runs it, and serves it until Ctrl-C."""

import argparse
import importlib.util
import io
import ipaddress
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from omnibus import checkpoints
from omnibus.checkpoints import precheck
from omnibus.checkpoints.gguf_header import LLAMA_CPP, is_gguf, projector_notes
from omnibus.checkpoints.report import Report
from omnibus.checkpoints.safetensors import TensorHeader
from omnibus.cli import serve_choices
from omnibus.cli.chat import chat
from omnibus.cli.detached import silence_output, start_detached
from omnibus.cli.format.models import shortest_declaration
from omnibus.cli.format.runs import address_text
from omnibus.cli.models import examine_checkpoint
from omnibus.cli.output import print_json
from omnibus.cli.processes import run_summary
from omnibus.cli.progress import ProgressBar
from omnibus.cli.serve_choices import Machine
from omnibus.errors import BadRequest, NotFound, OmnibusError, Rejected
from omnibus.executor.settings import ExecutorSettings, float_dtype
from omnibus.families import catalog, plugins
from omnibus.families.specs import ABSENT, KNOWN
from omnibus.process import run_module
from omnibus.process.logs import Log
from omnibus.process.memory import available_bytes
from omnibus.settings import read_settings
from omnibus.up.fork_client import fork_server_command
from omnibus.up.ports import LOOPBACK, require_free_port
from omnibus.up.preflight import CHECK_TIMEOUT_SECONDS, check_start
from omnibus.up.runs import RunState
from omnibus.up.stack import Declared, Stack

_DEFAULT_PORT = 8000
_DTYPE, _DEVICE = "OMNIBUS_EXECUTOR_DTYPE", "OMNIBUS_EXECUTOR_DEVICE"
_BATCH, _THREADS = "OMNIBUS_EXECUTOR_BATCH", "OMNIBUS_EXECUTOR_THREADS"
_NICE, _ENGINE = "OMNIBUS_EXECUTOR_NICE", "OMNIBUS_EXECUTOR_ENGINE"
_LLAMA_CPP_DTYPE = "float16"
_HOST = "OMNIBUS_GATEWAY_HOST"
_SERVED_FILE = "served.json"  # of the run's directory
#: Devices of drivers of GPUs: torch is asked about them only where there is one.
_GPU_DEVICES = ("nvidia0", "nvidiactl", "kfd", "dxg")


class Served(msgspec.Struct, frozen=True):
    """The model that is served, the choices for this machine, and what is to be told about them."""

    model: str
    family: str
    checkpoint: str
    device: str
    dtype: str
    context: int
    batch: int
    note: str = ""


class FoundCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint whose files are usable: its directory, and the tensors in its files."""

    name: str
    checkpoint: str
    directory: Path
    tensors: list[TensorHeader]


async def run_serve(options: argparse.Namespace) -> int:
    """Serve a checkpoint until a signal, in the background, or while a chat lasts."""
    if options.chat and (options.detach or options.json):
        raise BadRequest("--chat needs this terminal: use it without --detach and --json")
    if options.port is None:
        options.port = 0 if options.chat else _DEFAULT_PORT
    candidate = find_candidate(options)
    if options.port:
        require_free_port(options.port)
    if options.detach:
        return await start_detached(options, _read_served)
    # The device is checked when the checkpoint is examined, since both need torch.
    await check_start(None, 1, {**os.environ, _DEVICE: ExecutorSettings().device})
    log = io.StringIO()
    with ProgressBar(silent=options.json) as bar:
        stack = Stack(
            lambda fork_server: _declare(options, candidate, fork_server, stack, bar),
            name=options.name,
            port=options.port,
            env={_HOST: options.host} if options.host else None,
            passing=options.chat,
            report=bar.update,
            log=Log(log) if options.quiet or options.chat else None,
        )
        try:
            async with stack:
                bar.close()
                return await _serve(stack, options)
        except OmnibusError as error:
            if options.chat and not isinstance(error, Rejected):
                print(log.getvalue(), end="", file=sys.stderr)
            raise


async def _serve(stack: Stack, options: argparse.Namespace) -> int:
    if options.chat:
        model = _load_served(stack.directory).model
        await stack.supervisor.unless_over(chat(f"{stack.url}/v1", model, stack.certificate))
        return 0
    more, text = _read_served(stack.state)
    if options.json:
        print_json({**run_summary(stack.state), **more})
    else:
        token = stack.admin_token if stack.own_token else "$OMNIBUS_GATEWAY_ADMIN_TOKEN"
        print(f"\n{address_text(stack.state, token)}   stop: Ctrl-C\n\n{text}\n", flush=True)
    if options.detached:
        silence_output()
    await stack.supervisor.run_until_signal()
    return 0


def find_candidate(options: argparse.Namespace) -> FoundCheckpoint:
    """Find the checkpoint and check its files, in milliseconds. Raises ``Rejected`` with the reason and the remedy if
    it cannot be served here."""
    _check_host(options.host)
    if options.max_model_len < 0:
        raise BadRequest(f"--max-model-len must be a number of tokens, not {options.max_model_len}")
    directory = checkpoints.find_checkpoint(options.checkpoint)
    checkpoints.require_named_file(directory)
    usual_engine = serve_choices.choose_engine(directory, cpu_machine()) if _device(options) == "cpu" else ""
    is_native = os.environ.get(_ENGINE, usual_engine) == LLAMA_CPP
    _require_known_architecture(precheck.read_model_type(directory, is_native))
    tensors = precheck.require_whole(directory)
    if not tensors:
        pickles = any(directory.rglob("*.bin"))
        raise BadRequest(
            f"{directory} has no weights in safetensors"
            + ("; its *.bin files are pickles, which are never read: convert them" if pickles else ": download them")
        )
    [(name, model)] = shortest_declaration(Report("", "", "", {}), options.checkpoint)["models"].items()
    candidate = FoundCheckpoint(options.served_model_name or name, model["checkpoint"], directory, tensors)
    if _device(options) == "cpu":
        _choose_dtype(options, candidate, cpu_machine())
    return candidate


def _check_host(host: str) -> None:
    """Raise ``BadRequest`` for an address at which this command could not reach its own gateway on loopback."""
    try:
        can_reach = not host or host == LOOPBACK or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        can_reach = False
    if not can_reach:
        raise BadRequest(f"--host must be {LOOPBACK}, or 0.0.0.0 for all addresses of this machine, not {host}")


def cpu_machine() -> Machine:
    """Return this machine without its GPUs."""
    return Machine("cpu", available_bytes(), serve_choices.multiplies_bfloat16())


def _require_known_architecture(model_type: str) -> None:
    """Raise ``NotFound`` if neither Omnibus, a plugin nor the installed transformers can know ``model_type``.

    The examination knows better, but needs seconds for torch.
    """
    if model_type in ABSENT:
        raise NotFound(f"{model_type} is not served: {ABSENT[model_type]}")
    library = importlib.util.find_spec("transformers")
    if not model_type or model_type in KNOWN or model_type in plugins.family_names() or not library:
        return
    [package] = library.submodule_search_locations or [""]
    if not any(f'"{model_type}"' in path.read_text() for path in Path(package, "models", "auto").glob("*.py")):
        raise NotFound(
            f"the architecture {model_type} is unknown: the installed transformers has no class for it, and code of a "
            "checkpoint is never run. `omnibus models list` prints what is served"
        )


def _device(options: argparse.Namespace) -> str:
    """Return the device that was chosen, or the CPU on a machine without a GPU, else ``auto``."""
    if options.device != "auto":
        return str(options.device)
    has_gpu = any(Path("/dev", name).exists() for name in _GPU_DEVICES)
    return os.environ.get(_DEVICE) or ("auto" if has_gpu else "cpu")


def _choose_engine(candidate: FoundCheckpoint, machine: Machine) -> str:
    """Return the engine, empty for that of the environment."""
    return "" if _ENGINE in os.environ else serve_choices.choose_engine(candidate.directory, machine)


def _choose_dtype(options: argparse.Namespace, candidate: FoundCheckpoint, machine: Machine) -> str:
    """Return the dtype: for llama.cpp, which has weights as they are, that of keys and values.

    Raises ``BadRequest`` if the weights do not fit into memory.
    """
    if _choose_engine(candidate, machine):
        nbytes = sum(tensor.nbytes for tensor in candidate.tensors)
        serve_choices.require_memory(candidate.name, nbytes, _LLAMA_CPP_DTYPE, machine)
        return _LLAMA_CPP_DTYPE
    requested = options.dtype if options.dtype != "auto" else os.environ.get(_DTYPE, "auto")
    dtype = serve_choices.choose_dtype(requested, candidate.tensors, machine)
    loaded = float_dtype(dtype)  # integers are made of loaded weights
    nbytes = serve_choices.loaded_bytes(candidate.tensors, loaded)
    serve_choices.require_memory(candidate.name, nbytes, loaded, machine)
    return dtype


async def _declare(
    options: argparse.Namespace, candidate: FoundCheckpoint, fork_server: str, stack: Stack, bar: ProgressBar
) -> Declared:
    """Examine the checkpoint and choose how this machine runs it. Raises ``Rejected`` if it cannot."""
    bar.update("examining the checkpoint", 0, 1)
    command = partial(fork_server_command, fork_server) if fork_server else None
    machine = await _find_machine(_device(options), command)
    dtype, engine = _choose_dtype(options, candidate, machine), _choose_engine(candidate, machine)
    report = await examine_checkpoint(options.checkpoint, float_dtype(dtype), command=command)
    _require_complete(report, options.checkpoint)
    shape = serve_choices.choose_shape(report.family)
    batch = read_settings(ExecutorSettings).batch
    if engine:
        report = serve_choices.quantise_report(report, candidate.tensors)
        if _BATCH not in os.environ and "thinker" in report.parts:
            batch = serve_choices.LLAMA_CPP_BATCH
    cache = serve_choices.plan_cache(report, shape, options.max_model_len, batch, machine)
    weights, note = report.dtype if engine else dtype, "; ".join(_notes(report, cache))
    served = Served(candidate.name, report.family, candidate.checkpoint, machine.device, weights, *cache, note=note)
    (stack.directory / _SERVED_FILE).write_bytes(msgspec.json.encode(served))
    declaration = serve_choices.declare(served.model, report, served.checkpoint, shape, served.context)
    threads = serve_choices.count_threads(len(shape)) if machine.is_cpu else 1
    # Executors of one user's model do not make room for requests of others, and a busy machine would stop them.
    chosen = {_BATCH: str(cache.batch), _THREADS: str(threads), _NICE: "0"}
    usual = {name: value for name, value in chosen.items() if name not in os.environ}
    return Declared(
        json.dumps(declaration),
        {_DTYPE: dtype, _DEVICE: machine.device, **usual, **({_ENGINE: engine} if engine else {})},
    )


async def _find_machine(device: str, command: run_module.Command | None) -> Machine:
    """Ask torch about ``device``, unless it is the CPU. Raises ``BadRequest`` if torch cannot compute there."""
    if device != "cpu":
        answer = await run_module.call_module(
            "omnibus_models.device", device, within=CHECK_TIMEOUT_SECONDS, command=command
        )
        machine = msgspec.convert(answer, Machine)
        if not machine.is_cpu:
            return machine
    return cpu_machine()


def _require_complete(report: Report, checkpoint: str) -> None:
    if not report.complete:
        faults = [f"{name}: {fault}" for name, part in report.parts.items() for fault in part.faults]
        raise BadRequest(
            f"{checkpoint} cannot be served: {'; '.join([*faults, *report.lost, *report.broken])} "
            f"(`omnibus models check {shlex.quote(checkpoint)}` has the details)"
        )


def _notes(report: Report, cache: serve_choices.CachePlan) -> Iterator[str]:
    longest = max((part.context for part in report.parts.values()), default=0)
    if cache.context and cache.context < longest:
        yield f"the context is {cache.context} of {longest} tokens (--max-model-len, or memory)"
    if is_gguf(Path(report.path)):
        yield from projector_notes(Path(report.path))


def _load_served(directory: str | Path) -> Served:
    return msgspec.json.decode((Path(directory) / _SERVED_FILE).read_bytes(), type=Served)


def _read_served(state: RunState) -> tuple[Mapping[str, Any], str]:
    """Return what ``omnibus serve`` adds to the description of a run, for programs and as text."""
    served = _load_served(state.directory)
    url = f"{state.gateway_url}/v1"
    command = example_command(served, url)
    limits = [f"{served.context} tokens"] if served.context else []
    facts = ", ".join([served.family, f"{served.dtype} on {served.device}", *limits, f"{served.batch} at a time"])
    lines = [
        f"Serving {served.model} ({facts})",
        *([f"Note: {served.note}"] if served.note else []),
        f"Base URL: {url}   model: {served.model}",
        command,
    ]
    return {**msgspec.to_builtins(served), "base_url": url, "curl": command}, "\n".join(lines)


def example_command(served: Served, url: str) -> str:
    """Return a curl command that the model at the base URL ``url`` answers."""
    gives = catalog.output_kinds(catalog.find_family(served.family))
    body: dict[str, Any]
    if "text" in gives:
        route, body = "chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}
    elif "embedding" in gives:
        route, body = "embeddings", {"input": ["Hello"]}
    elif "score" in gives:
        route, body = "rerank", {"query": "Hello", "documents": ["Good morning", "A red circle"]}
    elif "transcript" in gives:
        return f"curl {url}/audio/transcriptions -F {shlex.quote(f'model={served.model}')} -F file=@speech.wav"
    elif "speech" in gives:
        route, body = "audio/speech", {"input": "Good morning.", "voice": "alloy"}
    else:
        route, body = ("videos" if "video" in gives else "images/generations"), {"prompt": "a red circle"}
    output = " -o speech.mp3" if route == "audio/speech" else ""
    data = shlex.quote(json.dumps({"model": served.model, **body}, ensure_ascii=False))
    return f"curl {url}/{route} -H 'Content-Type: application/json' -d {data}{output}"
