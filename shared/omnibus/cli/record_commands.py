"""Arguments of the commands that read recorded invocations."""

from typing import Any

from omnibus.cli.output import add_output_options


def add_record_commands(commands: Any) -> None:
    """Add the commands to ``commands`` of ``omnibus``."""
    tail = commands.add_parser("tail", help="watch invocations as they begin and end")
    show = commands.add_parser("show", help="show one invocation or realtime session, with the times of its events")
    replay = commands.add_parser("replay", help="run a recorded invocation again and compare the answers")
    for command in (show, replay):
        command.add_argument("id", help="an invocation, e.g. from the x-request-id header")
    add_output_options(tail, json="print the records as JSON, one a line")
    add_output_options(show)
    add_output_options(replay, json="print JSON, a line for each event")
    replay.add_argument(
        "--from", dest="start", default="", metavar="STAGE", help="run only this node or component, and those after it"
    )
    replay.add_argument("--path", default="", metavar="NAME", help="take this path, not the recorded one")
    replay.add_argument(
        "--route", default="", metavar="EXECUTORS", help="`recorded`, or an executor for each node, comma separated"
    )
    usage = commands.add_parser("usage", help="GPU-seconds and money by tenant, of the requests that are recorded")
    usage.add_argument("--since", type=float, default=24.0, metavar="HOURS", help="how far back (default 24)")
    add_output_options(usage)
    step = commands.add_parser("step", help="go through a recorded invocation edge by edge")
    step.add_argument("id", help="an invocation, e.g. from the x-request-id header")
    step.add_argument("--at", default="", metavar="STAGE", help="only this node or component")
    step.add_argument("--all", action="store_true", help="do not wait for Enter after each step")
    step.add_argument("--save", metavar="DIR", help="write images, audio and other contents into this directory")
    step.add_argument("--url", help="the gateway that has contents; without it the running `omnibus up` is found")
    add_output_options(step)
    fork = commands.add_parser("fork", help="run a recorded invocation again with one input changed")
    fork.add_argument("id", help="the invocation to fork from")
    fork.add_argument("stage", help="a node's number or component, whose input changes")
    fork.add_argument(
        "changes", nargs="*", metavar="INPUT=VALUE", help="as params.temperature=0.2; a value is JSON, or else text"
    )
    fork.add_argument("--seed", type=int, help="another seed for random sampling")
    add_output_options(fork, json="print JSON, a line for each event")
    compare = commands.add_parser("compare", help="two invocations side by side: inputs, results, times and prices")
    compare.add_argument("ids", nargs=2, metavar="ID", help="an invocation, and the one that was forked from it")
    add_output_options(compare)
    for command in (tail, show, replay, usage, step, fork, compare):
        command.add_argument("--nats", metavar="URL", help="the bus; without it the running `omnibus up` is found")
