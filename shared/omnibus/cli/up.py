"""``omnibus up``: runs the whole system on this machine until Ctrl-C."""

import argparse
import asyncio
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omnibus.cli import app_target
from omnibus.cli.apps import APPS, TASKS, describe_access, register_app
from omnibus.cli.detached import silence_output, start_detached
from omnibus.cli.format.runs import address_text
from omnibus.cli.gateway import Gateway
from omnibus.cli.nodes import listen_options, run_node
from omnibus.cli.output import print_json
from omnibus.cli.processes import run_summary
from omnibus.cli.progress import ProgressBar
from omnibus.errors import BadRequest, DeadlineExceeded, NotFound
from omnibus.families import catalog
from omnibus.process.logs import Log
from omnibus.up.ports import require_free_port
from omnibus.up.preflight import check_start
from omnibus.up.real_models import REAL_APPS, REAL_PROFILE, real_models, real_settings, require_real_set
from omnibus.up.stack import APPS_DIR, Stack
from omnibus.up.tiny_models import tiny_models

#: Declarations of no models at all.
NO_MODELS = '{"models": {}}'
SERVE_TIMEOUT_SECONDS = 120.0  # seconds from an app's registration until every gateway serves it


async def run_up(options: argparse.Namespace) -> int:
    """Run the system until a signal, or in the background. With ``--join``, run a node instead."""
    if options.join:
        _require_node_options(options)
        return await run_node(options)
    if options.detach:
        return await start_detached(options)
    await check_start(Path(options.models) if options.models else None, options.nodes)
    if options.port:
        require_free_port(options.port)  # before models are built
    if options.real:
        require_real_set()
        options.app = [*REAL_APPS, *options.app]
    await _check_apps(options)
    apps: list[dict[str, Any]] = []
    with ProgressBar(silent=options.json) as bar:

        async def register_apps(stack: Stack) -> None:
            apps.extend(await register_everywhere(stack, options.app, bar.update))

        stack = Stack(
            real_models(profile=_find_real_profile()) if options.real else await load_declarations(options, bar.update),
            name=options.name,
            port=options.port,
            gateways=options.gateways,
            nodes=options.nodes,
            listen=listen_options(options) if options.listen else None,
            apps_dir=Path(options.apps_dir) if options.apps_dir else None,
            fork_executors=not options.no_models,  # without models it only costs time and memory
            env=real_settings() if options.real else None,
            set_up=register_apps,
            report=bar.update,
            log=Log(io.StringIO()) if options.quiet else None,
        )
        async with stack:
            bar.close()
            return await _run_stack(stack, options, apps)


def _require_node_options(options: argparse.Namespace) -> None:
    """Raise ``BadRequest`` for options of a whole system."""
    others = ("listen", "models", "no_models", "real", "only", "app", "detach")
    if used := [f"--{name.replace('_', '-')}" for name in others if getattr(options, name)]:
        raise BadRequest(f"{', '.join(used)} cannot be used with --join: the machine with --listen decides what runs")


def _find_real_profile() -> str:
    """Return the path of the profile in the current directory that ``omnibus profile --real`` wrote; empty without."""
    path = Path(REAL_PROFILE)
    return str(path.resolve()) if path.is_file() else ""


async def _check_apps(options: argparse.Namespace) -> None:
    """Load the apps to register as a gateway does. Raises ``BadRequest`` if one is invalid."""
    directory = options.apps_dir or os.environ.get(APPS_DIR) or os.getcwd()
    if not os.access(directory, os.R_OK | os.X_OK):
        raise BadRequest(f"--apps-dir {directory} must be a directory that this user can read")
    if not options.app:
        return
    from omnibus.cli.app_check import describe_app  # with the libraries of apps

    for target in options.app:
        app_target.source_body(target, None, directory)
        await describe_app(target)


async def _run_stack(stack: Stack, options: argparse.Namespace, apps: Sequence[Mapping[str, Any]]) -> int:
    if options.json:
        print_json({**run_summary(stack.state), "apps": [app["name"] for app in apps]})
    else:
        _print_addresses(stack, apps)
    if options.detached:
        silence_output()
    await stack.supervisor.run_until_signal()
    return 0


async def register_everywhere(
    stack: Stack, targets: Sequence[str], report: Callable[[str, int, int], None]
) -> list[dict[str, Any]]:
    """Register ``targets`` and return the apps once every gateway serves them. ``report`` is that of ``Stack``.

    Raises ``DeadlineExceeded``.
    """
    apps = []
    for index, target in enumerate(targets):
        report("starting apps", index, len(targets))
        apps.append(await _register_app(stack, target))
    return apps


async def _register_app(stack: Stack, target: str) -> dict[str, Any]:
    gateways = [Gateway(url, stack.admin_token, str(stack.apps_dir), stack.certificate) for url in stack.urls]
    app = await asyncio.to_thread(register_app, gateways[0], target, None)
    name = app["name"]
    try:
        async with asyncio.timeout(SERVE_TIMEOUT_SECONDS):
            for gateway in gateways:
                while not await asyncio.to_thread(_serves_app, gateway, name):  # noqa: ASYNC110 HTTP has no event for it
                    await asyncio.sleep(0.1)
    except TimeoutError:
        raise DeadlineExceeded(
            f"not every gateway serves {name} within {SERVE_TIMEOUT_SECONDS:g} s: see the log lines above"
        ) from None
    return app


def _serves_app(gateway: Gateway, name: str) -> bool:
    """Return True if ``gateway`` has a worker of the app, and an executor of each of its own unit tasks."""
    try:
        app = gateway.call("GET", f"{APPS}/{name}")
    except NotFound:  # the registration has not reached it yet
        return False
    tasks = {task["name"]: task for task in gateway.call("GET", TASKS)["data"]}
    return (app["worker"] or {}).get("state") == "ready" and all(
        any(executor["state"] == "ok" for executor in tasks[task["name"]]["executors"])
        for task in app["tasks"]
        if task["own"]
    )


def _print_addresses(stack: Stack, apps: Sequence[Mapping[str, Any]]) -> None:
    token = stack.admin_token if stack.own_token else "$OMNIBUS_GATEWAY_ADMIN_TOKEN"
    print(f"\n{address_text(stack.state, token)}   stop: Ctrl-C\n", flush=True)
    for app in apps:
        print(f"{app['name']} is up: {describe_access(app, stack.url)}\n", flush=True)


async def load_declarations(options: argparse.Namespace, report: Callable[[str, int, int], None] | None = None) -> str:
    """Return the declarations to serve: the named file's, none, or local models. The default is the trained local
    models.

    ``report`` is that of ``tiny_models``.
    """
    if options.no_models:
        return NO_MODELS
    if not options.models:
        return await tiny_models(options.only or list(catalog.WORLD), report=report)
    return _read_declarations(Path(options.models))


def _read_declarations(path: Path) -> str:
    try:
        return _resolve_paths(path.read_text(), path.parent.resolve())
    except OSError as error:
        raise BadRequest(f"--models {path}: {error.strerror}") from error


def _plan_settings(declarations: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the settings of all plans in ``declarations``: of models, and of apps."""
    return [declarations.get("apps", {}), *(model.get("planned", {}) for model in declarations["models"].values())]


def _is_beside(checkpoint: str) -> bool:
    return checkpoint.startswith(("./", "../"))


def _is_path(checkpoint: str) -> bool:
    return _is_beside(checkpoint) or (bool(checkpoint) and not os.path.isabs(checkpoint) and Path(checkpoint).exists())


def _resolve_paths(text: str, directory: Path) -> str:
    """Make relative paths of profiles, checkpoints and adapters absolute.

    Checkpoints and adapters that begin with ``./`` or ``../`` are paths from ``directory``. Others are paths from the
    current directory if they exist there, else ids. Services read the declarations in another directory.
    """
    try:
        declarations = json.loads(text)
        models = list(declarations["models"].values())
        profiles = [each for each in _plan_settings(declarations) if each.get("profile")]
        for plan_settings in profiles:
            plan_settings["profile"] = str(directory / plan_settings["profile"])
        references = [(model, "checkpoint") for model in models]
        references += [(model["adapters"], name) for model in models for name in model.get("adapters", ())]
        checkpoints = [(owner, name) for owner, name in references if _is_path(owner.get(name, ""))]
        for owner, name in checkpoints:
            base = directory if _is_beside(owner[name]) else Path()
            owner[name] = str((base / owner[name]).resolve())
    except (ValueError, LookupError, TypeError, AttributeError):  # the planner reports the error
        return text
    return json.dumps(declarations) if profiles or checkpoints else text
