"""``python -m omnibus.checkpoints ID``: download a checkpoint, and print its directory."""

import sys

from omnibus import child
from omnibus.checkpoints import download

if __name__ == "__main__":
    sys.exit(child.answer(lambda: str(download(sys.argv[1]))))
