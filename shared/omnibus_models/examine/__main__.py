"""``python -m omnibus_models.examine DIR [DTYPE]``: print the report of a checkpoint, see ``omnibus.child``."""

import sys
from pathlib import Path
from typing import Any

import msgspec

from omnibus import child
from omnibus.errors import Fatal


def examine() -> Any:
    try:
        from omnibus_models.examine.report import report
    except ImportError as error:
        raise Fatal(f"{error.name}, to read models, is missing: pip install 'omnibus-serve[llm,generator]'") from error
    return msgspec.to_builtins(report(Path(sys.argv[1]), *sys.argv[2:3]))


if __name__ == "__main__":
    sys.exit(child.answer(examine))
