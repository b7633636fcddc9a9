"""``omnibus app``: register, list, show, call, update and unregister apps of a running Omnibus."""

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from omnibus.cli import app_target, gateway
from omnibus.cli.format.tables import field_lines, fit_text, table_lines
from omnibus.cli.gateway import Gateway
from omnibus.cli.output import print_json, print_names

APPS, TASKS = "/v1/apps", "/v1/tasks"


async def run_app_command(options: argparse.Namespace) -> int:
    """Run the subcommand of ``omnibus app`` in ``options``, except ``run``."""
    if options.app_command == "check":
        from omnibus.cli.app_check import check_app  # with the libraries of apps, which ``omnibus up`` does not need

        return await check_app(options)
    there = gateway.find_gateway(options)
    commands: dict[str, Callable[[Gateway, argparse.Namespace], int]] = {
        "register": _register_and_print,
        "list": _list_apps,
        "show": _show_app,
        "invoke": _invoke_app,
        "update": _update_app,
        "unregister": _unregister_app,
    }
    return await asyncio.to_thread(commands[options.app_command], there, options)


def register_app(
    there: Gateway, target: str | None, upload: str | None, canary: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Register an app and return the gateway's description of it. ``canary`` contains the options of a canary of a new
    version."""
    body = {"source": app_target.source_body(target, upload, there.apps_dir), **(canary or {})}
    description: dict[str, Any] = there.call("POST", APPS, body)
    return description


def describe_access(app: Mapping[str, Any], url: str) -> str:
    """Return where clients reach ``app`` of the gateway at ``url``."""
    if app["invocable"]:
        return f"POST {url}{_app_url_path(app['name'])}/invoke"
    return f"model {app['model']} at {url}/v1 for {', '.join(app['routes'])}"


def print_response(there: Gateway, name: str, request: Any, plain: bool) -> None:
    """Call an app and print the parts of its response.

    Texts are printed as they are unless ``plain``, which prints JSON.
    """
    open_line = False
    for part in there.call_streaming(f"{_app_url_path(name)}/invoke", request):
        open_line = isinstance(part, str) and not plain
        print(part if open_line else json.dumps(part, ensure_ascii=False), end="" if open_line else "\n", flush=True)
    if open_line:
        print()


def _register_and_print(there: Gateway, options: argparse.Namespace) -> int:
    app = register_app(there, options.target, options.upload, _canary_body(options))
    return _print_changed_app(app, options, "registered")


def _update_app(there: Gateway, options: argparse.Namespace) -> int:
    changes = _canary_body(options)
    if options.target is not None or options.upload is not None:
        changes["source"] = app_target.source_body(options.target, options.upload, there.apps_dir)
    return _print_changed_app(there.call("PUT", _app_url_path(options.name), changes), options, "updated")


def _canary_body(options: argparse.Namespace) -> dict[str, Any]:
    """Return the requested canary in the gateway's format, empty for none."""
    if options.canary is None:
        return {}
    return {"canary": {"last": options.canary, "tolerance": options.tolerance, "score": options.score}}


def _print_changed_app(app: dict[str, Any], options: argparse.Namespace, change: str) -> int:
    if options.json:
        print_json(app)
        return 0
    how = f": call it with `omnibus app invoke {app['name']} JSON`" if app["invocable"] else ""
    print(fit_text(f"{app['name']} is {change}, version {app['version']}{how}"))
    if canary := app.get("canary"):
        left = len(canary["calls"]) - canary["compared"]
        calls = "1 recorded call was" if canary["compared"] == 1 else f"{canary['compared']} recorded calls were"
        print(f"{calls} answered as before" + (f", {left} left out" if left else ""))
    if app["model"]:
        print(f"it is also the model {app['model']!r} for {', '.join(app['routes'])}")
    return 0


def _list_apps(there: Gateway, options: argparse.Namespace) -> int:
    apps = there.call("GET", APPS)["data"]
    if options.json:
        print_json(apps)
        return 0
    if options.quiet:
        print_names(app["name"] for app in apps)
        return 0
    rows = [
        [
            app["name"],
            str(app["version"]),
            _worker_state(app["worker"]),
            app["model"] or "-",
            ", ".join(app["tasks"]) or "-",
        ]
        for app in apps
    ]
    print("\n".join(table_lines(["APP", "VERSION", "STATE", "MODEL", "TASKS"], rows)))
    return 0


def _show_app(there: Gateway, options: argparse.Namespace) -> int:
    app = there.call("GET", _app_url_path(options.name))
    if options.json:
        print_json(app)
        return 0
    problem = (app["worker"] or {}).get("problem")
    details = {
        "version": str(app["version"]),
        "state": _worker_state(app["worker"]),
        "problem": f"version {problem['version']}: {problem['message']}" if problem else "",
        "source": _source_text(app["source"]),
        "updated": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(app["updated"])),
    }
    from omnibus.cli.app_check import describe_fields

    print("\n".join(field_lines({**describe_fields(app), **details})))
    return 0


def _invoke_app(there: Gateway, options: argparse.Namespace) -> int:
    print_response(there, options.name, app_target.parse_request(options.body), options.json)
    return 0


def _unregister_app(there: Gateway, options: argparse.Namespace) -> int:
    app = there.call("DELETE", _app_url_path(options.name))
    if options.json:
        print_json(app)
    else:
        print(f"{app['name']} is unregistered")
    return 0


def _source_text(source: dict[str, Any]) -> str:
    """Return a text for the location of an app's code."""
    if directory := source.get("directory"):
        return f"{source['module']}, in {'the directory of apps' if directory == '.' else directory}"
    return " ".join(filter(None, [source["kind"], source["module"], source.get("sha256")]))


def _app_url_path(name: str) -> str:
    return f"{APPS}/{quote(name, safe='')}"


def _worker_state(worker: dict[str, Any] | None) -> str:
    if worker is None:
        return "unknown"
    behind = worker.get("problem")
    return f"{worker['state']}, not version {behind['version']}" if behind and worker["version"] else worker["state"]
