"""``python -m omnibus.cli``."""

import sys

from omnibus.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
