"""``python -m omnibus.checkpoints ID``: download a checkpoint, and print its directory."""

import sys

from omnibus.checkpoints import download
from omnibus.process import run_module

if __name__ == "__main__":
    sys.exit(run_module.answer(lambda: str(download(sys.argv[1]))))
