"""Arguments of ``omnibus keys``, ``nats-config``, ``env`` and ``completion``."""

import argparse
from typing import Any

from omnibus.cli.output import add_output_options


def add_access_commands(commands: Any, parser: argparse.ArgumentParser) -> None:
    """Add the commands to ``commands``, the subcommands of ``parser``."""
    _add_keys(commands)
    env = commands.add_parser("env", help="print variables with which other tools find the running `omnibus up`")
    add_output_options(env)
    completion = commands.add_parser("completion", help="print a script that completes these commands in a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"), help='as in eval "$(omnibus completion bash)"')
    completion.set_defaults(parser=parser)
    config = commands.add_parser("nats-config", help="print users and permissions for a NATS server")
    config.add_argument("--port", type=int, default=0, help="listen on this port (default: the server's own setting)")
    config.add_argument(
        "--store-dir", default="", metavar="DIR", help="directory of the streams (default: the server's own setting)"
    )
    config.add_argument("--tls", default="", metavar="DIR", help="a directory with tls.crt and tls.key")
    config.add_argument(
        "--models",
        default="",
        metavar="FILE",
        help="declared models: add a user for each, whose executors receive the work of that model alone",
    )
    config.add_argument("--nodes", action="store_true", help="add the user of machines that join: `omnibus node token`")
    config.add_argument("--json", action="store_true", help="print the permissions by user as JSON, and nothing else")


def _add_keys(commands: Any) -> None:
    own = commands.add_parser("keys", help="API keys of tenants").add_subparsers(
        dest="keys_command", required=True, metavar="COMMAND"
    )
    create = own.add_parser("create", help="make a key for a tenant; prints it once")
    list_command = own.add_parser("list", help="list the keys, without their secrets")
    revoke = own.add_parser("revoke", help="revoke a key")
    create.add_argument("tenant", metavar="TENANT", help="the tenant; its keys share one place in the queue")
    add = create.add_argument
    add("--weight", type=float, default=1.0, help="share of the GPU-seconds when others wait too (default 1)")
    add("--rate", type=float, default=0.0, metavar="N", help="requests per second (default: no limit)")
    add("--burst", type=float, default=0.0, metavar="N", help="of them at once (default: a second's worth)")
    add("--concurrent", type=int, default=0, metavar="N", help="requests at a time (default: no limit)")
    add("--gpu-seconds", type=float, default=0.0, metavar="N", help="GPU-seconds per second (default: no limit)")
    add("--note", default="", metavar="TEXT", help="shown by `omnibus keys list`")
    add("--offline", action="store_true", help="store nothing; print the key and its record for a file of keys")
    revoke.add_argument("id", metavar="KEY", help="the id in `omnibus keys list`")
    for command in (create, list_command, revoke):
        add_output_options(command, names="ids" if command is list_command else "")
        command.add_argument("--store", metavar="URL", help="the store; without it the running `omnibus up` is found")
