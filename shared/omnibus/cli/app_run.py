"""``omnibus app run``: starts a stack on this machine for one app, until it has responded or until Ctrl-C."""

import argparse
import asyncio
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from omnibus.app.protocol import Description
from omnibus.cli import app_target
from omnibus.cli.app_check import describe_app
from omnibus.cli.apps import describe_access, print_response, register_app
from omnibus.cli.gateway import Gateway
from omnibus.cli.progress import ProgressBar
from omnibus.cli.up import NO_MODELS, load_declarations
from omnibus.errors import BadRequest, OmnibusError, Rejected
from omnibus.families import catalog
from omnibus.process.logs import Log
from omnibus.up.real_models import REAL_MODELS, real_models, real_settings
from omnibus.up.stack import Stack
from omnibus.up.tiny_models import tiny_models


async def run_app(options: argparse.Namespace) -> int:
    """Start a stack and register the app. If a request is given, call the app once."""
    with ProgressBar(silent=options.json) as bar:
        return await _run_app(options, bar)


async def _run_app(options: argparse.Namespace, bar: ProgressBar) -> int:
    once = options.body is not None
    request = app_target.parse_request(options.body)
    description = await describe_app(options.target)  # reports its problems before the stack starts
    if _chooses_models(options):
        models = await load_declarations(options, bar.update)
    else:
        models = await declare_local_models([description], bar)
    root = app_target.locate_module(options.target)[1] if app_target.is_file(options.target) else Path.cwd()
    quiet = io.StringIO()
    stack = Stack(
        models,
        port=_choose_port(options.port, once),
        apps_dir=root,
        log=Log(quiet) if once else None,
        env=real_settings() if _is_real(description) else None,
        fork_executors=models != NO_MODELS,
        passing=once,
        report=bar.update,
    )
    try:
        async with stack:
            bar.close()
            there = Gateway(stack.url, stack.admin_token, str(root), stack.certificate)
            app = await asyncio.to_thread(register_app, there, options.target, None)
            if once:
                await asyncio.to_thread(print_response, there, app["name"], request, options.json)
                return 0
            print(
                f"\n{app['name']} is up: {describe_access(app, stack.url)}   "
                f"routes: {stack.url}/openapi.json   after a change: omnibus app update {app['name']}   stop: Ctrl-C\n",
                flush=True,
            )
            await stack.supervisor.run_until_signal()
    except OmnibusError as error:
        if not isinstance(error, Rejected):
            print(quiet.getvalue(), end="", file=sys.stderr)
        raise
    return 0


def _chooses_models(options: argparse.Namespace) -> bool:
    """Return whether ``options`` choose the models to serve."""
    return bool(options.models or options.only or options.no_models)


def _called_models(*apps: Description) -> list[str]:
    return list(dict.fromkeys(task.model for app in apps for task in app.tasks if task.model and not task.own))


def _is_real(app: Description) -> bool:
    """Return whether ``app`` runs on trained models of packages."""
    return not {*REAL_MODELS}.isdisjoint(_called_models(app))


async def declare_local_models(apps: Sequence[Description], bar: ProgressBar) -> str:
    """Declare the models whose unit tasks ``apps`` call: tiny ones, or those of packages. Raises ``BadRequest`` for
    others."""
    models = _called_models(*apps)
    if models and {*models} <= {*REAL_MODELS}:
        return real_models(models)
    other_models = [model for model in models if model not in catalog.LOCAL]
    if other_models:
        names = ", ".join(app.name for app in apps)
        raise BadRequest(
            f"{names} needs {', '.join(other_models)}: declare it in a file and name that with --models FILE"
        )
    return await tiny_models(models, report=bar.update) if models else NO_MODELS


def _choose_port(port: int | None, once: bool) -> int:
    return port if port is not None else 0 if once else 8000
