"""A process that checks shapes of answers, one after another: one a line in, the reason that it cannot be used out.

A library cannot be stopped in the middle of a grammar, and a process can: whoever started this one ends it.
"""

import json
import sys

from omnibus.structured.shapes import find_shape_error


def main() -> None:
    """Answer until the input ends. The first line out, "", says that it is ready."""
    find_shape_error({"json": {"const": "a"}})
    _answer("")
    for line in sys.stdin:
        _answer(find_shape_error(json.loads(line)))


def _answer(error: str) -> None:
    sys.stdout.write(f"{json.dumps(error)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
