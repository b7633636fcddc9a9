"""``python -m omnibus_generator``: one executor, configured by ``OMNIBUS_EXECUTOR_*``."""

import sys

from omnibus.executor.service import ExecutorService
from omnibus.service import run_service

if __name__ == "__main__":
    sys.exit(run_service("generator", ExecutorService))
