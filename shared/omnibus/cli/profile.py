"""``omnibus profile``: measure the deployment options of a model under a workload."""

import argparse
import hashlib
import io
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from omnibus import profile
from omnibus.cli import app_target, plans
from omnibus.cli.app_check import describe_app as load_app
from omnibus.cli.format.tables import fit_text, table_lines
from omnibus.cli.output import print_json
from omnibus.cli.parser import UsageError
from omnibus.cli.profile_apps import measures_apps, profile_apps
from omnibus.cli.progress import ProgressBar
from omnibus.cli.up import load_declarations
from omnibus.errors import BadRequest, Rejected
from omnibus.executor.settings import ExecutorSettings
from omnibus.families import catalog
from omnibus.families.specs import KNOWN
from omnibus.process.logs import Log
from omnibus.profile import ModelProfile
from omnibus.profiling import experiments, measured_model, plot, run, workload
from omnibus.profiling.conclusions import contradictions
from omnibus.profiling.csv_workload import RowSampling
from omnibus.profiling.measurements import MeasureSettings, OptionMeasurement, PartialProfile, write_file
from omnibus.profiling.run import ENGINE, ENGINE_PROFILE
from omnibus.settings import StoreSettings, read_settings
from omnibus.up.tiny_models import tiny_models

CREDITS = "OMNIBUS_EXECUTOR_CREDITS"
#: Credits of an executor for each concurrent request: a request returns its credit shortly after its end.
_CREDITS_PER_REQUEST = 2
#: Requests at a time at most, and seconds in which an option must start, unless asked otherwise.
_MOST_AT_ONCE, _START_SECONDS = 64, 300.0
#: The device of executors without GPUs.
CPU = "cpu"


async def profile_model(options: argparse.Namespace) -> int:
    """Measure a model, write profile and plot, and print a table. Requests that name apps measure these instead."""
    if measures_apps(options):
        return await profile_apps(options)
    store = _store_settings(options)  # before this command's own stack is the running one
    with ProgressBar(silent=options.json) as bar:
        spec = await _make_spec(options, bar)
    out = Path(options.out or f"{spec.subject.name.replace('/', '-')}.profile.json")
    keeper = PartialProfile(out, spec.key)
    keeper.read_existing(options.resume)
    output = io.StringIO()
    try:
        with ProgressBar(silent=options.json, lines=True) as bar:
            result = await run.run_profiling(spec, keeper, Log(output, {"NO_COLOR": "1"}), partial(_report, bar))
    except BaseException as error:
        _print_failure(error, output, keeper)
        raise
    plot_file = out.with_name(f"{out.name.removesuffix('.json')}.svg")
    write_file(out, msgspec.json.format(profile.encode_profile(result), indent=1) + b"\n")
    write_file(plot_file, plot.render_svg(result).encode())
    if store is not None:
        await plans.store_profile(store, result)
    option_notes = [note for measurement in keeper.found.values() for note in measurement.notes]
    notes = [*spec.workload.notes, *spec.notes, *option_notes, *contradictions(result)]
    _print_profile(options, result, keeper.found, notes, [str(out), str(plot_file)])
    keeper.remove()
    return 0


def _report(bar: ProgressBar, option: str, done_count: int, count: int, words: str) -> None:
    bar.update(option or "omnibus", done_count, count, words)


async def _make_spec(options: argparse.Namespace, bar: ProgressBar) -> run.ProfilingSpec:
    """Return the requested run. Raises ``BadRequest`` for unknown names before anything is started."""
    _check_options(options)
    name, declarations = await _find_declarations(options, bar)
    subject = measured_model.find_subject(name, declarations)
    device = options.gpu or _default_device()
    degrees, notes = _parallel_degrees(options.tp, device)
    selected_options = experiments.choose_options(subject, options.option, options.all_options)
    return run.ProfilingSpec(
        subject=subject,
        workload=workload.read_workload(
            Path(options.workload), subject, RowSampling(options.sample, options.seed, options.scale)
        ),
        options=experiments.vary_options(selected_options, _whole_numbers("--batch", options.batch), degrees),
        how=MeasureSettings(
            options.seconds,
            options.requests,
            options.most,
            options.others,
            device,
            max(options.others, options.most_others),
        ),
        env=_executor_environment(options),
        marks=_resume_marks(options),
        start_within=_START_SECONDS if options.start_within is None else options.start_within,
        notes=notes,
    )


def _parallel_degrees(text: str, device: str) -> tuple[list[int], tuple[str, ...]]:
    """Return the degrees of tensor parallelism to measure. Also return notes on the omitted ones."""
    degrees = [each for each in _whole_numbers("--tp", text) if each > 1]
    if degrees and device == CPU:
        degree_list = ", ".join(map(str, degrees))
        return [], (
            f"tensor parallelism of {degree_list} is not measured: executors run on processors here, not on GPUs",
        )
    return degrees, ()


def _whole_numbers(flag: str, text: str) -> list[int]:
    """Read numbers above 0, comma separated. Raises ``BadRequest`` that names ``flag``."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise BadRequest(f"{flag} must be whole numbers above 0, separated by commas, not {text!r}")
    return list(dict.fromkeys(map(int, parts)))


def _executor_environment(options: argparse.Namespace) -> dict[str, str]:
    """Return the environment variables to add for executors. Executors must accept as many requests as are sent."""
    environment = {}
    if options.engine:
        environment[ENGINE] = options.engine
    if options.engine_profile:
        environment[ENGINE_PROFILE] = str(Path(options.engine_profile).resolve())
    if _CREDITS_PER_REQUEST * options.most > read_settings(ExecutorSettings).credits:
        environment[CREDITS] = str(_CREDITS_PER_REQUEST * options.most)
    return environment


def _resume_marks(options: argparse.Namespace) -> dict[str, str]:
    if not options.engine_profile:
        return {}
    return {"engine profile": hashlib.sha256(Path(options.engine_profile).read_bytes()).hexdigest()[:12]}


def _check_options(options: argparse.Namespace) -> None:
    missing = [name for name, value in (("app", options.app), ("--workload", options.workload)) if not value]
    if missing:
        names = ", ".join(missing)
        raise UsageError(f"the following arguments are required: {names} (`omnibus profile --help`)")
    if len(options.app) > 1:
        raise BadRequest("name one model or app to measure, and its requests: omnibus profile MODEL --workload FILE")
    if options.most is None:
        options.most = _MOST_AT_ONCE
    for name, least in (
        ("seconds", 0.05),
        ("requests", 1),
        ("most", 1),
        ("others", 1),
        ("most_others", 1),
        ("sample", 1),
        ("scale", 1e-6),
    ):
        if not getattr(options, name) >= least:
            raise BadRequest(f"--{name.replace('_', '-')} must be at least {least:g}")
    if not os.access(options.workload, os.R_OK):
        raise BadRequest(f"--workload {options.workload}: cannot read this file")
    if options.out and not os.access(Path(options.out).parent, os.W_OK):
        raise BadRequest(f"--out {options.out}: cannot write a file there")
    if options.engine_profile and not Path(options.engine_profile).is_file():
        raise BadRequest(f"--engine-profile {options.engine_profile}: file not found")


def _default_device() -> str:
    """Return the default type of GPU: the processor's, or empty for the only one there is."""
    device = read_settings(ExecutorSettings).device
    return "" if device.startswith("cuda") else device


async def _find_declarations(options: argparse.Namespace, bar: ProgressBar) -> tuple[str, str]:
    """Return the model, and the declarations that contain it."""
    [app] = options.app
    if options.models:
        declarations = await load_declarations(argparse.Namespace(no_models=False, models=options.models, only=[]))
        declared_models = measured_model.model_names(declarations)
        if app not in declared_models and _is_app(app):
            return _choose_model(
                app, [each for each in await _called_models(app) if each in declared_models], options.model
            ), declarations
        return app, declarations
    if app in catalog.LOCAL:
        family = catalog.find_family(catalog.LOCAL[app])
        measured_model.chat_components(app, family["components"], family["tasks"])  # before anything is built
        return app, await tiny_models([app], report=bar.update)
    if app in KNOWN:
        raise BadRequest(
            f"{app} is a family: name its tiny model, {KNOWN[app].tiny}, or one of yours and its file, --models FILE"
        )
    if not _is_app(app):
        model_list = ", ".join(catalog.LOCAL)
        raise BadRequest(f"unknown model or app {app!r}: use {model_list}, or name a file with --models FILE")
    tiny = [each for each in await _called_models(app) if each in catalog.LOCAL]
    name = _choose_model(app, tiny, options.model)
    return name, await tiny_models([name], report=bar.update)


def _is_app(app: str) -> bool:
    return app_target.is_file(app) or all(part.isidentifier() for part in app.split("."))


async def _called_models(app: str) -> list[str]:
    """Return the models whose unit tasks ``app`` calls."""
    description = await load_app(app)
    return list(dict.fromkeys(task.model for task in description.tasks if task.model and not task.own))


def _choose_model(app: str, models: list[str], model: str) -> str:
    if model and model not in models:
        raise BadRequest(f"{app} does not use {model}; it uses {', '.join(models) or 'no model that is known here'}")
    if not model and len(models) != 1:
        many = f"uses {', '.join(models)}: choose one with --model" if models else "uses no model that is known here"
        raise BadRequest(f"{app} {many}")
    return model or models[0]


def _store_settings(options: argparse.Namespace) -> StoreSettings | None:
    """Return the settings of the profile's store, or None. The store is that of ``--store``, or with ``--put`` that of
    the running ``omnibus up``."""
    return plans.store_settings(options) if options.store or options.put else None


def _print_failure(error: BaseException, output: io.StringIO, keeper: PartialProfile) -> None:
    """Print the last lines of the services and how to continue."""
    lines = output.getvalue().splitlines()
    if isinstance(error, Exception) and not isinstance(error, Rejected) and lines:
        print("\n".join(lines[-12:]), file=sys.stderr)
    measured_options = [name for name, measurement in keeper.found.items() if measurement.option.is_measured]
    if measured_options and keeper.path.exists():
        print(f"{', '.join(measured_options)} kept in {keeper.path}: go on with --resume", file=sys.stderr)


def _print_profile(
    options: argparse.Namespace,
    profile: ModelProfile,
    measurements: dict[str, OptionMeasurement],
    notes: list[str],
    files: list[str],
) -> None:
    if options.json:
        result = {"model": profile.model, "profile": files[0], "plot": files[1], "notes": notes}
        rates = {name: each.rate for name, each in profile.options.items()}
        print_json({**result, "rates": rates})
        return
    kinds = list(profile.types)
    head = ["OPTION", "REQ/S", "BUSY", *(f"S OF {kind or 'ANY'}" for kind in kinds), "START S", "GB"]
    print(
        "\n".join(
            table_lines(
                head, [row for name in profile.options for row in _option_rows(name, profile, measurements[name])]
            )
        )
    )
    print(fit_text("".join(f"\n{note}" for note in notes) + f"\n{'   '.join(files)}"))


def _option_rows(name: str, profile: ModelProfile, measurement: OptionMeasurement) -> Iterator[list[str]]:
    """Yield the row of an option. More rows follow, for the components that other options ran before it."""
    option = profile.options[name]
    busy = f"{min(measurement.busy, 1):.0%}" if measurement.busy >= 0 else ""
    if not option.is_measured:
        yield [name, "not measured", *[""] * (len(profile.types) + 3)]
        return
    roles = dict.fromkeys(
        tuple(
            part
            for part in option.components
            if part not in work.components and part in _used_components(profile, work.type)
        )
        for work in option.work
    )
    for earlier_parts in sorted(roles, key=len):
        seconds = {
            work.type: f"{work.seconds:.3g}"
            for work in option.work
            if {*work.components} == {*_used_components(profile, work.type)} & {*option.components} - {*earlier_parts}
            and {*earlier_parts} <= {*_used_components(profile, work.type)}
        }
        cells = [seconds.get(kind, "") for kind in profile.types]
        if not earlier_parts:
            yield [name, f"{option.rate:.3g}", busy, *cells, f"{option.start_s:.2f}", f"{option.memory_gb:.2f}"]
        else:
            yield [f"  after {'+'.join(earlier_parts)}", "", "", *cells, "", ""]


def _used_components(profile: ModelProfile, kind: str) -> tuple[str, ...]:
    return profile.types[kind].components if kind in profile.types else ()
