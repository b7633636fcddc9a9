"""``python -m omnibus.checkpoints ID``: downloads a checkpoint and prints its directory."""

import sys

from omnibus.checkpoints import download_checkpoint
from omnibus.process import run_module

if __name__ == "__main__":
    sys.exit(run_module.report_answer(lambda: str(download_checkpoint(sys.argv[1]))))
