"""``python -m omnibus_models.examine DIR [DTYPE [ADAPTER ...]]``: report of a checkpoint, and whether adapters fit.

See ``omnibus.process.run_module``; an empty DTYPE is that of the weights.
"""

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
    checkpoint, *more = sys.argv[1:]
    return msgspec.to_builtins(examine_checkpoint(Path(checkpoint), "".join(more[:1]), more[1:]))


if __name__ == "__main__":
    sys.exit(run_module.report_answer(examine))
