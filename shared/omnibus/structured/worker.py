"""Process that checks shapes of answers sequentially.

It reads one shape a line, and writes for each the reason that it cannot be used. The library cannot be stopped during a
check, but a process can: its parent kills it.
"""

import json
import sys

from omnibus.structured.shapes import find_shape_error


def main() -> None:
    """Answer until the input ends. The first output line, "", reports that it is ready."""
    find_shape_error({"json": {"const": "a"}})
    _answer("")
    for line in sys.stdin:
        _answer(find_shape_error(json.loads(line)))


def _answer(error: str) -> None:
    sys.stdout.write(f"{json.dumps(error)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
