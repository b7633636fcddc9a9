"""``omnibus models list | show | check | get | tiny``: model families and their checkpoints."""

import argparse
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from omnibus import checkpoints
from omnibus.checkpoints.gguf_header import is_gguf
from omnibus.checkpoints.identity import read_identity
from omnibus.checkpoints.packaged import PACKAGED, find_packaged
from omnibus.checkpoints.precheck import read_model_type
from omnibus.checkpoints.report import Report, TrialReport
from omnibus.cli import plans
from omnibus.cli.format import models as models_format
from omnibus.cli.output import print_json, print_names
from omnibus.cli.progress import ProgressBar
from omnibus.errors import BadRequest, NotFound, StageUnavailable, StoreUnavailable
from omnibus.families import catalog, plugins
from omnibus.families.specs import ABSENT, KNOWN
from omnibus.plan import Plan
from omnibus.process import run_module
from omnibus.process.spec import python_path
from omnibus.store import Store
from omnibus.up import tiny_models

#: Seconds that the examination of a checkpoint may take, and a download.
EXAMINE_TIMEOUT_SECONDS, VERIFY_TIMEOUT_SECONDS, DOWNLOAD_TIMEOUT_SECONDS = 300.0, 3600.0, 24 * 3600.0
#: Environment of processes that read a checkpoint.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


async def run_models(options: argparse.Namespace) -> int:
    """Run the subcommand of ``omnibus models`` in ``options`` and return its exit code."""
    commands: dict[str, Callable[[argparse.Namespace], Awaitable[int]]] = {
        "list": _list_models,
        "show": _show_model,
        "check": _check_checkpoint,
        "get": _get_checkpoint,
        "tiny": _build_tiny,
    }
    return await commands[options.models_command](options)


async def _list_models(options: argparse.Namespace) -> int:
    families, absent = {name: models_format.family_info(name) for name in KNOWN}, dict(ABSENT)
    for name in sorted({*plugins.family_names()} - {catalog.PYTHON, *KNOWN}):
        try:
            families[name] = models_format.family_info(name)
        except BadRequest as error:  # one faulty plugin does not hide the others
            absent[name] = error.message
    plan = await _current_plan(options)
    if options.json:
        running = (
            None
            if plan is None
            else {name: models_format.plan_model_summary(model) for name, model in plan.models.items()}
        )
        print_json({"families": families, "absent": absent, "running": running})
    elif options.quiet:
        print_names(families)
    else:
        print("\n".join(models_format.list_lines(families, absent, plan)))
    return 0


async def _show_model(options: argparse.Namespace) -> int:
    family = _find_family(options.what)
    if family:
        about = models_format.family_info(family)
        if options.json:
            print_json(about)
        else:
            print("\n".join(models_format.family_lines(about)))
        return 0
    report = await examine_checkpoint(options.what, options.dtype)
    if options.json:
        print_json({**msgspec.to_builtins(report), "options": models_format.option_bytes(report)})
    else:
        print("\n".join(models_format.checkpoint_lines(report)))
    return 0


async def _check_checkpoint(options: argparse.Namespace) -> int:
    report = await examine_checkpoint(options.checkpoint, options.dtype, options.adapter)
    declaration = models_format.shortest_declaration(report, options.checkpoint, options.adapter)
    trials: dict[str, TrialReport] = {}
    if options.deep and report.complete:
        trials["trial"] = await _run_trial(report.path, within=EXAMINE_TIMEOUT_SECONDS)
    if options.verify and report.complete:
        trials["weights"] = await _run_trial(report.path, "--weights", within=VERIFY_TIMEOUT_SECONDS)
    if options.json:
        faults = {name: part.faults for name, part in report.parts.items()}
        result = {
            "complete": report.complete,
            "faults": faults,
            "declaration": declaration if report.complete else None,
        }
        result["identities"] = _encoder_identities(report)
        print_json({**msgspec.to_builtins(report), **result, **msgspec.to_builtins(trials)})
    else:
        print("\n".join(models_format.check_lines(report, declaration, _encoder_identities(report))))
        for name, trial in trials.items():
            print("\n".join(["", *models_format.trial_lines(name, trial)]))
    return 0 if report.complete and all(trial.admitted for trial in trials.values()) else 1


async def _run_trial(*arguments: str, within: float) -> TrialReport:
    """Return the report of ``omnibus_llm.repeated_trial``, which runs in a process of its own."""
    environment = {**_OFFLINE, "PYTHONPATH": python_path()}
    report = await run_module.call_module("omnibus_llm.repeated_trial", *arguments, within=within, env=environment)
    return msgspec.convert(report, TrialReport)


def _encoder_identities(report: Report) -> dict[str, str]:
    """Return the identity of each encoder whose weights are present. Models share executors of equal encoders."""
    spec = KNOWN.get(report.family)
    identities: dict[str, str] = {}
    for component, kind in spec.tasks.items() if spec is not None and report.complete else ():
        if kind == "encode" and spec is not None:
            identity = read_identity(Path(report.path), report.family, component, spec.weights, encodes=True)
            identities |= {component: identity.digest} if identity is not None else {}
    return identities


async def _get_checkpoint(options: argparse.Namespace) -> int:
    if not options.id:
        return _list_packaged(options)
    if "/" not in options.id:
        return _find_packaged(options)
    is_shown = not options.json
    silent = (
        {} if is_shown and sys.stderr.isatty() else {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    )  # the client draws its own
    path = await run_module.call_module(
        "omnibus.checkpoints", options.id, within=DOWNLOAD_TIMEOUT_SECONDS, env=silent, show=is_shown
    )
    _print_path(options, {"id": options.id, "path": path})
    return 0


def _list_packaged(options: argparse.Namespace) -> int:
    if options.json:
        print_json({name: {**each._asdict(), "installed": each.is_installed} for name, each in PACKAGED.items()})
    else:
        print("\n".join(models_format.packaged_lines()))
    return 0


def _find_packaged(options: argparse.Namespace) -> int:
    """Print where packaged weights are. The licence is on stderr, so that a script can use the path."""
    path = find_packaged(options.id)
    about = PACKAGED[options.id]
    if not options.json:
        print(f"{about.weights}, from {about.package} {about.release}, licence {about.licence}", file=sys.stderr)
        print(models_format.packaged_use(options.id, path), file=sys.stderr)
    _print_path(options, {"id": options.id, "path": str(path), "licence": about.licence})
    return 0


async def _build_tiny(options: argparse.Namespace) -> int:
    family = _find_family(options.family)
    if family not in KNOWN:
        raise NotFound(f"unknown tiny model {options.family}: use one of {', '.join(KNOWN)}")
    directory = Path(options.directory) if options.directory else tiny_models.tiny_directory() / family
    with ProgressBar(silent=options.json) as bar:
        bar.update(f"building {KNOWN[family].tiny}", 0, 1)
        await (tiny_models.write_checkpoint if options.directory else tiny_models.build_checkpoint)(family, directory)
    _print_path(options, {"family": family, "path": str(directory)})
    return 0


def _print_path(options: argparse.Namespace, result: dict[str, str]) -> None:
    if options.json:
        print_json(result)
    else:
        print(result["path"])


async def examine_checkpoint(
    checkpoint: str, dtype: str = "", adapters: Sequence[str] = (), command: run_module.Command | None = None
) -> Report:
    """Return the report on a directory, a GGUF file or an id of the hub.

    ``adapters`` must fit the checkpoint, ``command`` is as in ``run_module``.

    Raises the error that prevents the examination.
    """
    directory = checkpoints.find_checkpoint(checkpoint)
    checkpoints.require_named_file(directory)
    if is_gguf(directory):  # in milliseconds
        read_model_type(directory, native=True)
    adapter_paths = [str(checkpoints.find_checkpoint(adapter)) for adapter in adapters]
    arguments = [str(directory), *([dtype] if dtype or adapter_paths else []), *adapter_paths]
    report = await run_module.call_module(
        "omnibus_models.examine", *arguments, within=EXAMINE_TIMEOUT_SECONDS, env=_OFFLINE, command=command
    )
    return msgspec.convert(report, Report)


def _find_family(name: str) -> str:
    """Return the family with this name, or whose tiny model has it; empty if unknown."""
    families: dict[str, str] = {
        **{spec.tiny: family for family, spec in KNOWN.items()},
        **{each: each for each in KNOWN},
    }
    return families.get(name) or (name if name in plugins.family_names() else "")


async def _current_plan(options: argparse.Namespace) -> Plan | None:
    """Return the current plan, or None if no Omnibus is running. Raises if the named store cannot be reached."""
    has_store = bool(options.store)
    store: Store | None = None
    try:
        store = Store(plans.store_settings(options))
        return await store.plan(0)
    except (StageUnavailable, StoreUnavailable):
        if has_store or "OMNIBUS_STORE_URL" in os.environ:
            raise
        return None
    finally:
        if store is not None:
            await store.close()
