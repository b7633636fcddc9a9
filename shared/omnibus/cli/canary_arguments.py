"""Arguments of ``omnibus canary`` and ``omnibus bisect``."""

from collections.abc import Callable
from typing import Any

from omnibus.cli.output import add_output_options


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
