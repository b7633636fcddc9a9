"""Arguments of ``omnibus serve``."""

import argparse
from typing import Any

from omnibus.cli.output import add_output_options
from omnibus.cli.serve_choices import DTYPES
from omnibus.executor.settings import INT8


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
