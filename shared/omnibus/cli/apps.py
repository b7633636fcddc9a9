"""``omnibus app``: register, look at, call, update and unregister apps of a running Omnibus."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from omnibus.cli import app_target, gateway
from omnibus.cli.app_check import check, described
from omnibus.cli.format.tables import fields, table
from omnibus.cli.gateway import Gateway
from omnibus.errors import BadRequest

APPS = "/v1/apps"


async def app(options: argparse.Namespace) -> int:
    """The command that was named below ``omnibus app``, but for ``run``."""
    if options.app_command == "check":
        return await check(options)
    there = gateway.find(options)
    commands: dict[str, Callable[[Gateway, argparse.Namespace], int]] = {
        "register": _register,
        "list": _list,
        "show": _show,
        "invoke": _invoke,
        "update": _update,
        "unregister": _unregister,
    }
    return await asyncio.to_thread(commands[options.app_command], there, options)


def register(there: Gateway, target: str | None, upload: str | None) -> dict[str, Any]:
    """Register an app; returns it as the gateway shows it."""
    found: dict[str, Any] = there.call("POST", APPS, {"source": app_target.source(target, upload, there.apps_dir)})
    return found


def body(text: str | None) -> Any:
    """The request that was given as JSON, ``-`` for what comes on stdin, or ``{}``. Raises ``BadRequest``."""
    given = sys.stdin.read() if text == "-" else text
    try:
        return {} if given is None else json.loads(given)
    except ValueError as error:
        raise BadRequest(f"the request is no JSON: {error}") from error


def say(there: Gateway, name: str, request: Any, plain: bool) -> None:
    """Call an app and print its answer, parts as they come; texts as they are unless ``plain`` asks for JSON."""
    told = False
    for part in there.parts(f"{_path(name)}/invoke", request):
        told = isinstance(part, str) and not plain
        print(part if told else json.dumps(part, ensure_ascii=False), end="" if told else "\n", flush=True)
    if told:
        print()


def _register(there: Gateway, options: argparse.Namespace) -> int:
    return _changed(register(there, options.target, options.upload), options, "registered")


def _update(there: Gateway, options: argparse.Namespace) -> int:
    wanted = {}
    if options.target is not None or options.upload is not None:
        wanted = {"source": app_target.source(options.target, options.upload, there.apps_dir)}
    return _changed(there.call("PUT", _path(options.name), wanted), options, "updated")


def _changed(app: dict[str, Any], options: argparse.Namespace, what: str) -> int:
    if options.json:
        print(json.dumps(app))
        return 0
    print(f"{app['name']} is {what}, version {app['version']}: call it with `omnibus app invoke {app['name']} JSON`")
    if app["model"]:
        print(f"it also answers chat completions as model {app['model']!r}")
    return 0


def _list(there: Gateway, options: argparse.Namespace) -> int:
    apps = there.call("GET", APPS)["data"]
    if options.json:
        print(json.dumps(apps))
        return 0
    rows = [
        [app["name"], str(app["version"]), _state(app["worker"]), app["model"] or "-", ", ".join(app["tasks"]) or "-"]
        for app in apps
    ]
    print("\n".join(table(["APP", "VERSION", "STATE", "MODEL", "TASKS"], rows)))
    return 0


def _show(there: Gateway, options: argparse.Namespace) -> int:
    app = there.call("GET", _path(options.name))
    if options.json:
        print(json.dumps(app))
        return 0
    source, worker = app["source"], app["worker"] or {}
    where = " ".join(filter(None, [source["kind"], source["module"], source.get("directory"), source.get("sha256")]))
    problem = worker.get("problem")
    named = {
        "version": str(app["version"]),
        "state": _state(app["worker"]),
        "problem": f"version {problem['version']}: {problem['message']}" if problem else "",
        "source": where,
        "updated": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(app["updated"])),
    }
    print("\n".join([*described(app), *fields(named)]))
    return 0


def _invoke(there: Gateway, options: argparse.Namespace) -> int:
    say(there, options.name, body(options.body), options.json)
    return 0


def _unregister(there: Gateway, options: argparse.Namespace) -> int:
    gone = there.call("DELETE", _path(options.name))
    print(json.dumps(gone) if options.json else f"{gone['name']} is unregistered")
    return 0


def _path(name: str) -> str:
    return f"{APPS}/{quote(name, safe='')}"


def _state(worker: dict[str, Any] | None) -> str:
    if worker is None:
        return "unknown"
    behind = worker.get("problem")
    return f"{worker['state']}, not version {behind['version']}" if behind and worker["version"] else worker["state"]
