"""Arguments of ``omnibus backup`` and ``omnibus restore``."""

from typing import Any

from omnibus.cli.output import add_output_options


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
