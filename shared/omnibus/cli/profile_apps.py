"""``omnibus profile`` of apps: measure the components that they call, for a plan of the processes that these share."""

import argparse
import asyncio
import io
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from omnibus import profile as profiles
from omnibus.cli import app_run, demo_media, plans
from omnibus.cli.app_check import describe_app
from omnibus.cli.demo_real import QUERY, QUESTION, RECEIPT, SENTENCES, TOTAL, DemoClient
from omnibus.cli.format.tables import table_lines
from omnibus.cli.output import print_json
from omnibus.cli.progress import ProgressBar
from omnibus.cli.up import NO_MODELS, load_declarations, register_everywhere
from omnibus.errors import BadRequest, OmnibusError, Rejected, StageUnavailable
from omnibus.executor.settings import ExecutorSettings
from omnibus.process.logs import Log
from omnibus.profile import ModelProfile
from omnibus.profiling.app_profile import APPS, ProcessTimes, build_apps_profile, find_parts, measure_apps
from omnibus.profiling.app_workload import read_app_workload
from omnibus.profiling.measurements import MeasureSettings, write_file
from omnibus.profiling.monitor import ExecutorMonitor
from omnibus.profiling.run import MEASURED
from omnibus.profiling.testbed import FULL_LOAD
from omnibus.profiling.workload import Workload
from omnibus.settings import StoreSettings, read_settings
from omnibus.store import Store
from omnibus.up.real_models import REAL_APPS, REAL_PROFILE, real_models, real_settings, require_real_set
from omnibus.up.stack import Stack

#: Requests at a time at most, unless asked otherwise: executors of the real set batch four.
_MOST_AT_ONCE = 4
#: Seconds that executors may take to report after their apps are registered.
_REPORT_SECONDS = 10.0
#: Tokens of the assistant's answer, as in the demo.
_ANSWER_TOKENS = 45


def measures_apps(options: argparse.Namespace) -> bool:
    """Return whether ``options`` ask for apps: the real set, or a workload whose requests name apps."""
    if options.real:
        return True
    try:
        requests = json.loads(Path(options.workload or "").read_text())["requests"]
        return any("app" in request for request in requests)
    except (OSError, ValueError, KeyError, TypeError):
        return False


async def profile_apps(options: argparse.Namespace) -> int:
    """Measure apps, write the profile of their components, and print a table."""
    if options.real:
        require_real_set()
    elif not options.app:
        raise BadRequest("name the apps to measure: omnibus profile my_app.py --workload FILE")
    store = plans.store_settings(options) if options.store or options.put else None
    targets = REAL_APPS if options.real else tuple(options.app)
    out, notes, output = Path(options.out or REAL_PROFILE), list[str](), io.StringIO()
    try:
        with ProgressBar(silent=options.json, lines=True) as bar:
            profile = await _measure_targets(options, targets, notes, Log(output, {"NO_COLOR": "1"}), bar)
    except Exception as error:
        print("".join(f"{note}\n" for note in notes), end="", file=sys.stderr)
        if not isinstance(error, Rejected):
            print("\n".join(output.getvalue().splitlines()[-12:]), file=sys.stderr)
        raise
    write_file(out, msgspec.json.format(profiles.encode_profile(profile), indent=1) + b"\n")
    if store is not None:
        await plans.store_profile(store, profile)
    _print_profile(options, profile, notes, str(out))
    return 0


async def _measure_targets(
    options: argparse.Namespace, targets: Sequence[str], notes: list[str], log: Log, bar: ProgressBar
) -> ModelProfile:
    descriptions = {target: await describe_app(target) for target in targets}
    models = {about.name: about.model for about in descriptions.values()}
    workload = None if options.real else read_app_workload(Path(options.workload), models, options.seed)
    declarations = await _declare_models(options, list(descriptions.values()), bar)
    settings = {**(real_settings() if options.real else {}), **MEASURED, **FULL_LOAD}
    if options.start_within is not None:
        settings["OMNIBUS_GATEWAY_APP_READY"] = str(options.start_within)
    how = MeasureSettings(options.seconds, options.requests, _MOST_AT_ONCE if options.most is None else options.most)
    async with _running_stack(declarations, settings, log, bar) as (stack, store):
        monitor = ExecutorMonitor(stack.bus)
        await monitor.listen()
        registered = await _register_apps(stack, targets, notes, bar)
        workload = workload or await make_real_workload(stack)
        requests = tuple(each for each in workload.requests if each.kind in registered)
        if not requests:
            raise StageUnavailable("no app could be registered; see the notes above")
        tasks = [task.name for about in descriptions.values() if about.name in registered for task in about.tasks]
        await monitor.read_busy(())
        await monitor.wait_until(
            lambda: {*tasks} <= {task for each in monitor.ready_statuses for task in each.tasks}, _REPORT_SECONDS
        )
        plan = await store.plan()
        if plan is None:
            raise StageUnavailable("the system has no plan: see its log")
        parts = find_parts(plan, list(dict.fromkeys(tasks)), monitor.ready_statuses)
        times = ProcessTimes.read_all()
        starts = {
            name: times.process_seconds(monitor.find_status(part.executor).pid, 0.0) for name, part in parts.items()
        }
        workload = msgspec.structs.replace(workload, requests=requests)
        measured = await measure_apps(stack.port, monitor, parts, workload, how, bar.update, notes)
        unused = [name for name in parts if not any(name in each.best_load.processor for each in measured)]
        notes.extend(
            f"{name} is not measured: no request reached it. Add one to the workload that does" for name in unused
        )
        threads = int(settings.get("OMNIBUS_EXECUTOR_THREADS", read_settings(ExecutorSettings).threads) or 1)
        return build_apps_profile(monitor, parts, starts, workload, measured, threads)


@asynccontextmanager
async def _running_stack(
    declarations: str, settings: Mapping[str, str], log: Log, bar: ProgressBar
) -> AsyncIterator[tuple[Stack, Store]]:
    async with Stack(
        declarations,
        log=log,
        env=settings,
        passing=True,
        fork_executors=declarations != NO_MODELS,
        report=lambda step, done, count: bar.update("omnibus", done, count, step),
    ) as stack:
        store = Store(StoreSettings(url=stack.valkey.url))
        try:
            yield stack, store
        finally:
            await store.close()


async def _declare_models(options: argparse.Namespace, apps: Sequence[Any], bar: ProgressBar) -> str:
    if options.real:
        return real_models()
    if options.models:
        return await load_declarations(argparse.Namespace(no_models=False, models=options.models, only=[]))
    return await app_run.declare_local_models(apps, bar)


async def _register_apps(stack: Stack, targets: Sequence[str], notes: list[str], bar: ProgressBar) -> set[str]:
    """Register ``targets`` one by one, and return the names of those that serve."""
    names = set[str]()
    for target in targets:
        try:
            [app] = await register_everywhere(
                stack, [target], lambda step, done, count: bar.update("omnibus", done, count, step)
            )
            names.add(app["name"])
        except OmnibusError as error:
            notes.append(f"{target} is not measured: {error.message}")
    return names


async def make_real_workload(stack: Stack) -> Workload:
    """Return the requests of the demo in equal shares: a spoken question, a receipt, a search."""
    models = {app.rpartition(".")[2]: app.rpartition(".")[2] for app in REAL_APPS}
    client, directory = DemoClient(stack), Path(tempfile.mkdtemp(prefix="omnibus-profile-"))
    try:
        (directory / "question.wav").write_bytes(await asyncio.to_thread(client.generate_speech, QUESTION))
        (directory / "receipt.png").write_bytes(demo_media.draw_receipt(RECEIPT, TOTAL))
        (directory / "real.json").write_text(json.dumps({"requests": real_requests()}))
        return read_app_workload(directory / "real.json", models)
    finally:
        shutil.rmtree(directory)


def real_requests() -> list[dict[str, Any]]:
    """Return the requests of the demo as a workload, next to ``question.wav`` and ``receipt.png``."""
    spoken = {"modalities": ["text", "audio"], "audio": {"voice": "joe", "format": "wav"}}
    return [
        {
            "app": "assistant",
            "body": {
                "messages": [{"role": "user", "content": [{"audio": "question.wav"}]}],
                "temperature": 0,
                "max_tokens": _ANSWER_TOKENS,
                **spoken,
            },
        },
        {
            "app": "receipt",
            "body": {"messages": [{"role": "user", "content": [{"image": "receipt.png"}]}], "temperature": 0},
        },
        {"app": "search", "body": {"query": QUERY, "texts": list(SENTENCES)}},
    ]


def _print_profile(options: argparse.Namespace, profile: ModelProfile, notes: Sequence[str], file: str) -> None:
    if options.json:
        seconds = {name: {work.type: work.seconds for work in each.work} for name, each in profile.options.items()}
        print_json({"model": APPS, "profile": file, "notes": list(notes), "seconds": seconds})
        return
    counts = sorted({point.at_once for option in profile.options.values() for point in option.curve})
    rows = []
    for name, option in profile.options.items():
        by_count = {point.at_once: f"{1 / point.rate:.3g}" for point in option.curve}
        cells = [by_count.get(count, "") for count in counts]
        rows.append([name, *cells, f"{option.start_s:.2f}", f"{option.memory_gb:.2f}"])
    print("\n".join(table_lines(["COMPONENT", *(f"S, {count} AT ONCE" for count in counts), "START S", "GB"], rows)))
    for request in profile.workload.split("; "):
        print(f"measured with {request}")
    print("".join(f"{note}\n" for note in notes) + file)
