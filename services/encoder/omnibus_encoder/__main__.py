"""``python -m omnibus_encoder``: one executor, configured by ``OMNIBUS_EXECUTOR_*``."""

import sys

from omnibus.executor.service import ExecutorService
from omnibus.service import run_service

if __name__ == "__main__":
    sys.exit(run_service("encoder", ExecutorService))
