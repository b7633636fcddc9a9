"""Arguments of the commands for runs of ``omnibus up`` on this machine, and for settings."""

from typing import Any


def add_run_commands(commands: Any) -> None:
    """Add the arguments to ``commands`` of ``omnibus``."""
    listed = commands.add_parser("settings", help="all settings, and the values that they have in this shell")
    listed.add_argument("words", nargs="*", metavar="WORD", help="only settings with these words in their names")
    listed.add_argument("--set", action="store_true", help="only those that are set in this shell")
    listed.add_argument("--json", action="store_true", help="print JSON")
