"""Arguments of the ``omnibus`` command. Each command's module is imported when it is run."""

import argparse
import asyncio
import importlib
import sys
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from omnibus import __version__
from omnibus.cli import access, help_texts, record_commands, runs, size, whatif
from omnibus.cli.arguments import (
    add_adapters_command,
    add_app_canary_arguments,
    add_backup_commands,
    add_bisect_command,
    add_canary_command,
    add_models_command,
    add_node_commands,
    add_node_options,
    add_serve_command,
)
from omnibus.cli.os_errors import PIPE_CLOSED_EXIT_CODE, explain_os_error, ignore_closed_pipe
from omnibus.cli.output import USAGE, add_output_options, print_error
from omnibus.cli.parser import USAGE_EXIT_CODE, CommandParser, UsageError
from omnibus.errors import OmnibusError, ProblemDetails, Rejected
from omnibus.process.spec import EXIT_MISCONFIGURED

INTERRUPTED_EXIT_CODE = 130
#: Module and function of each command, and of the subcommands that have a separate function.
_HANDLERS = {
    "adapters": "adapters:run_adapters",
    "app": "apps:run_app_command",
    "app run": "app_run:run_app",
    "backup": "backup:run_backup",
    "compare": "compare:compare_invocations",
    "bisect": "bisect:bisect_invocation",
    "canary": "canary:run_canary",
    "completion": "completion:print_completion",
    "deadletters": "dead_letters:run_dead_letters",
    "demo": "demo:run_demo",
    "down": "processes:stop_runs",
    "env": "environment:print_environment",
    "fork": "steps:fork_and_print",
    "keys": "keys:run_keys",
    "logs": "processes:print_logs",
    "models": "models:run_models",
    "nats-config": "nats_config:nats_config",
    "node": "nodes:list_nodes",
    "node join": "nodes:run_node",
    "node drain": "nodes:drain_node",
    "node token": "nodes:write_token",
    "node unit": "nodes:print_unit",
    "nodes": "nodes:list_nodes",
    "plan": "plans:run_plan",
    "ps": "processes:list_runs",
    "profile": "profile:profile_model",
    "replay": "invocations:replay_invocation",
    "restore": "backup:run_restore",
    "serve": "serve:run_serve",
    "settings": "settings:list_settings",
    "show": "invocations:show_invocation",
    "step": "steps:show_steps",
    "size": "size:print_size",
    "status": "processes:show_status",
    "tail": "invocations:tail_records",
    "tasks": "tasks:list_tasks",
    "top": "top:run_top",
    "up": "up:run_up",
    "usage": "usage:show_usage",
    "whatif": "whatif:run_whatif",
}


#: Commands that run the system, perhaps in the background.
_RUNNING = ("node join", "serve", "up")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Prints errors as one line on stderr, in JSON for a command that prints
    JSON."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run_command(argv)
    except UsageError as error:
        print_error(ProblemDetails(USAGE, str(error)), "--json" in argv)
        sys.exit(USAGE_EXIT_CODE)
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE


def _run_command(argv: list[str]) -> int:
    options = _build_parser().parse_args(argv)
    is_running = _command_name(options) in _RUNNING
    if is_running:
        options.arguments = argv
    runs.choose_run(options)
    try:
        code = asyncio.run(_dispatch_command(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        ignore_closed_pipe()
        return PIPE_CLOSED_EXIT_CODE
    except (OmnibusError, OSError) as error:
        problem = error if isinstance(error, OmnibusError) else explain_os_error(error)
        if problem is None:
            raise
        print_error(problem, getattr(options, "json", False))
        return EXIT_MISCONFIGURED if is_running and isinstance(problem, Rejected) else 1


def _dispatch_command(options: argparse.Namespace) -> Coroutine[Any, Any, int]:
    """Import the module of the requested command and return its coroutine."""
    module, _, function = (_HANDLERS.get(_command_name(options)) or _HANDLERS[options.command]).partition(":")
    return getattr(importlib.import_module(f"omnibus.cli.{module}"), function)(options)


def _command_name(options: argparse.Namespace) -> str:
    """Return the command with its subcommand, if any."""
    below = getattr(options, f"{options.command}_command", "")
    return f"{options.command} {below}" if below else str(options.command)


def _build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="omnibus", description="Serve any-to-any multimodal models on a message bus.")
    parser.add_argument("--version", action="version", version=f"omnibus {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    add_serve_command(commands)
    _add_up(commands)
    _add_demo(commands)
    record_commands.add_record_commands(commands)
    add_bisect_command(commands)
    _add_dead_letters(commands)
    _add_top(commands)
    _add_app(commands)
    _add_plan(commands)
    add_canary_command(commands)
    whatif.add_whatif_command(commands)
    size.add_size_command(commands)
    add_models_command(commands)
    add_adapters_command(commands)
    _add_profile(commands)
    runs.add_run_commands(commands)
    add_node_commands(commands)
    access.add_access_commands(commands, parser)
    add_backup_commands(commands)
    runs.add_run_options(parser)
    help_texts.add_help_texts(parser)
    return parser


def _add_up(commands: Any) -> None:
    up = commands.add_parser("up", help="run the whole system on this machine, without containers")
    up.add_argument(
        "--name",
        "--run",
        metavar="NAME",
        default="",
        help="of this run, for `omnibus ps` and other commands' --run (default: its port)",
    )
    up.add_argument(
        "-d",
        "--detach",
        action="store_true",
        help="return once everything serves, and leave it running in the background",
    )
    up.add_argument("--detached", action="store_true", help=argparse.SUPPRESS)  # the process in the background
    up.add_argument(
        "--port", type=int, default=8000, help="HTTP port of the gateway; 0 takes a free one (default 8000)"
    )
    up.add_argument("--gateways", type=int, default=1, metavar="N", help="gateways side by side (default 1)")
    up.add_argument(
        "--nodes", type=int, default=1, metavar="N", help="nodes, each with its own shared memory (default 1)"
    )
    up.add_argument(
        "--listen", metavar="HOST[:PORT]", default="",
        help="let other machines join at this address: `omnibus node token` (default port 4222)",
    )  # fmt: skip
    up.add_argument(
        "--join", metavar="FILE", default="", help="be a node of another machine's: `omnibus node join FILE`"
    )
    add_node_options(up, name="--machine")
    models = up.add_mutually_exclusive_group()
    models.add_argument("--models", metavar="FILE", help="declarations of models; without it the small trained ones")
    models.add_argument("--no-models", action="store_true", help="serve what apps bring along and nothing else")
    models.add_argument(
        "--real", action="store_true", help="serve trained models of packages, and a voice assistant and more on them"
    )
    up.add_argument(
        "--only", action="append", default=[], metavar="NAME",
        help="serve this local model in their place (repeatable; a wrong name lists all)",
    )  # fmt: skip
    up.add_argument(
        "--app", action="append", default=[], metavar="TARGET", help="register this module or file (repeatable)"
    )
    up.add_argument("--apps-dir", metavar="DIR", help="where apps may lie that are registered by path (default .)")
    up.add_argument("-q", "--quiet", action="store_true", help="do not print what the processes log")
    add_output_options(up, json="once everything serves, print the run as JSON")


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser("demo", help="start everything, send one request with an image and audio, show its path")
    demo.add_argument(
        "--real",
        action="store_true",
        help="trained models of packages: a voice assistant, a receipt, a search",
    )
    demo.add_argument("--image", metavar="FILE", help="your own image")
    demo.add_argument("--audio", metavar="FILE", help="your own audio file")
    demo.add_argument("--video", metavar="FILE", help="your own video")
    demo.add_argument("--prompt", default="What do you see and hear?", help="the question")
    demo.add_argument("--model", default="qwen2.5-omni-world", help="the model to ask (default qwen2.5-omni-world)")
    demo.add_argument("--seed", type=int, help="which scene and audio of the small world (default: any)")
    demo.add_argument(
        "--out", metavar="FILE", default="answer.wav",
        help="file for the spoken answer; the generated image is next to it, as .png (default answer.wav)",
    )  # fmt: skip


def _add_dead_letters(commands: Any) -> None:
    dead = commands.add_parser("deadletters", help="inputs that crashed or failed an engine; try them again")
    own = dead.add_subparsers(dest="dead_command", metavar="COMMAND")
    list_command = own.add_parser("list", help="the last ones (also without a command)")
    show = own.add_parser("show", help="show one: the reason, the lost executors, the sizes of its inputs")
    retry = own.add_parser("retry", help="run the input again under a new id; delete the letter if it succeeds")
    remove = own.add_parser("remove", help="delete one")
    for command in (show, retry, remove):
        command.add_argument("id", help="an invocation of `omnibus deadletters`")
    retry.add_argument("--keep", action="store_true", help="do not delete the letter when the input succeeds")
    dead.set_defaults(limit=20, json=False, quiet=False, nats=None)  # words before and after the command mean the same
    for command in (dead, list_command, show, retry, remove):
        add = partial(command.add_argument, default=argparse.SUPPRESS)
        add("--nats", metavar="URL", help="the bus; without it the running `omnibus up` is found")
        names = "invocations" if command in (dead, list_command) else ""
        add_output_options(command, names=names, default=argparse.SUPPRESS)
        if command in (dead, list_command):
            add("--limit", type=int, metavar="N", help="letters to list (default 20)")


def _add_top(commands: Any) -> None:
    top = commands.add_parser("top", help="watch arrivals, executors and their load")
    top.add_argument("--once", action="store_true", help="observe for two seconds, print, and end")
    add_output_options(top, json="print JSON, one line each time")
    top.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help="how often (default 1)")
    top.add_argument("--nats", metavar="URL", help="the bus; without it the running `omnibus up` is found")
    top.add_argument("--store", metavar="URL", help="the store; without it the running `omnibus up` is found")


def _add_app(commands: Any) -> None:
    app = commands.add_parser("app", help="register, call, update and check apps")
    own = app.add_subparsers(dest="app_command", required=True, metavar="COMMAND")
    register = own.add_parser("register", help="serve an app at all gateways")
    update = own.add_parser("update", help="serve a new version, or reload the code; the old one serves meanwhile")
    check = own.add_parser("check", help="load an app here, describe it and draw its graph; nothing needs to run")
    list_command = own.add_parser("list", help="the registered apps")
    show = own.add_parser("show", help="all about one app")
    invoke = own.add_parser("invoke", help="call an app and print its answer, parts as they arrive")
    unregister = own.add_parser("unregister", help="end an app; its requests finish")
    run = own.add_parser("run", help="start everything, register an app, and call it")
    for command in (show, invoke, update, unregister):
        command.add_argument("name", help="an app's name")
    for command in (register, update, check):
        command.add_argument("target", nargs="?", help="a module, or a Python file below the directory of apps")
        command.add_argument("--upload", metavar="FILE", help="a file whose text is sent; its code runs restricted")
    add_app_canary_arguments(register, update)
    check.add_argument("--request", metavar="JSON", help="the request to draw the graph for (default: one is made up)")
    run.add_argument("target", help="a Python file, or a module")
    for command in (invoke, run):
        command.add_argument("body", nargs="?", metavar="JSON", help="the request, or - for stdin")
    run.add_argument("--port", type=int, help="HTTP port; 0 takes a free one (default 8000, with JSON a free one)")
    models = run.add_mutually_exclusive_group()
    models.add_argument(
        "--models", metavar="FILE", help="declarations of models; without it the tiny ones that the app's tasks name"
    )
    models.add_argument("--no-models", action="store_true", help="serve what the app brings along and nothing else")
    run.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="serve only this tiny model (repeatable)"
    )
    tasks = commands.add_parser("tasks", help="unit tasks: who uses them and who runs them")
    for command in (register, update, check, list_command, show, invoke, unregister, run, tasks):
        add_output_options(command, names={list_command: "names", tasks: "names"}.get(command, ""))
    for command in (register, update, list_command, show, invoke, unregister, tasks):
        command.add_argument("--url", help="the gateway; without it the running `omnibus up` is found")


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser("plan", help="show the plan and its reasons, list earlier plans, and roll back")
    own = plan.add_subparsers(dest="plan_command", required=True, metavar="COMMAND")
    show = own.add_parser("show", help="options, executors, paths, and why they are as they are")
    diff = own.add_parser("diff", help="show the changes from one plan to another")
    history = own.add_parser("history", help="the plans that are stored")
    rollback = own.add_parser("rollback", help="serve an earlier plan, and stop planning automatically")
    resume = own.add_parser("resume", help="let the planner plan again")
    cells = own.add_parser(
        "cells", help="show the cells of models and their shares, or set the part that a cell gets of its share"
    )
    cells.add_argument("model", nargs="?", metavar="MODEL", help="a model in cells (default: all)")
    cells.add_argument("cell", nargs="?", metavar="CELL", help="a cell of it, whose share is set")
    cells.add_argument(
        "part", nargs="?", type=float, metavar="PART", help="of its planned share: 0 drains it, 1 is as planned"
    )
    show.add_argument("epoch", nargs="?", type=int, default=0, metavar="EPOCH", help="default: the current one")
    diff.add_argument(
        "epochs",
        nargs="*",
        type=int,
        metavar="EPOCH",
        help="two epochs, or one to compare with the current plan (default: the staged plan, or the last change)",
    )
    history.add_argument("--limit", type=int, default=20, metavar="N", help="epochs to show (default 20)")
    rollback.add_argument("epoch", type=int, metavar="EPOCH", help="an epoch of `omnibus plan history`")
    show.add_argument("--nats", metavar="URL", help="the bus, to count the executors that are up")
    for command in (show, diff, history, rollback, resume, cells):
        add_output_options(command, names="epochs" if command is history else "")
        command.add_argument("--store", metavar="URL", help="the store; without it the running `omnibus up` is found")


def _add_profile(commands: Any) -> None:
    profile = commands.add_parser("profile", help="measure a model's deployment options under a workload")
    add = profile.add_argument
    add("app", metavar="APP", nargs="*", help="a tiny model, a model of --models, or apps (modules or files)")
    add("--real", action="store_true", help="measure the trained models of packages and the apps on them")
    add("--workload", metavar="FILE", help="JSON requests, or a CSV of sizes (docs/models.md)")
    add("--out", metavar="FILE", help="file of the profile; its plot is next to it (default MODEL.profile.json)")
    add("--models", metavar="FILE", help="declarations of models; without it the tiny ones")
    add("--model", default="", metavar="NAME", help="which model, when the app uses several")
    add("--option", action="append", default=[], metavar="NAME", help="measure only this option (repeatable)")
    add("--all-options", action="store_true", help="measure every set of components")
    add("--seconds", type=float, default=5.0, help="how long each load lasts (default 5)")
    add("--requests", type=int, default=16, metavar="N", help="and until so many have ended (default 16)")
    add("--most", type=int, metavar="N", help="requests at a time at most (default 64, of apps 4)")
    add("--others", type=int, default=1, metavar="N", help="replicas of what else a path needs (default 1)")
    add("--most-others", type=int, default=4, metavar="N", help="and where these hold requests back (default 4)")
    add("--batch", default="", metavar="N,N", help="also measure options with these batches, 1,8,32")
    add("--tp", default="", metavar="N,N", help="also measure language models split over as many GPUs, 2,4")
    add("--sample", type=int, default=64, metavar="N", help="rows of a CSV to take (default 64)")
    add("--scale", type=float, default=1.0, metavar="FACTOR", help="of a CSV's numbers of tokens (default 1)")
    add("--seed", type=int, default=0, help="of the rows taken and of what is made up (default 0)")
    add("--gpu", default="", metavar="TYPE", help="the type of GPU that options run on (default cpu, on CPUs)")
    add("--engine", default="", metavar="MODULE:FUNCTION", help="the engine of the components (omnibus_engines:sim)")
    add("--engine-profile", default="", metavar="FILE", help="the times that a simulated engine follows")
    add("--start-within", type=float, metavar="SECONDS", help="for an option to start (default 300, an app 60)")
    add("--resume", action="store_true", help="continue an interrupted run with its measurements")
    add("--put", action="store_true", help="put the profile into the store of the running `omnibus up`, too")
    add("--store", default="", metavar="URL", help="put it into this store")
    add_output_options(profile, json="no progress; print JSON")
