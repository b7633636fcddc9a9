"""``python -m omnibus_models.examine DIR [DTYPE]``: report of a checkpoint (``omnibus.process.run_module``)."""

import sys
from pathlib import Path
from typing import Any

import msgspec

from omnibus.errors import Fatal
from omnibus.process import run_module


def examine() -> Any:
    try:
        from omnibus_models.examine.report import examine_checkpoint
    except ImportError as error:
        raise Fatal(f"{error.name}, to read models, is missing: pip install 'omnibus-serve[llm,generator]'") from error
    return msgspec.to_builtins(examine_checkpoint(Path(sys.argv[1]), *sys.argv[2:3]))


if __name__ == "__main__":
    sys.exit(run_module.report_answer(examine))
