"""Run ``omnibus up`` with services on external servers.

    python -m tests.e2e.available.up up ...

``TEST_BUS_URL`` and ``TEST_STORE_URL`` name these servers. ``omnibus up`` starts servers too, which stay unused.
"""

import os
import sys
from dataclasses import replace

from omnibus.cli import main as run_command
from omnibus.cli import up
from omnibus.up.stack import Stack


class OtherServersStack(Stack):
    """A stack on a cluster of NATS servers and a sentinel-monitored store."""

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self.nats = replace(self.nats, url=os.environ["TEST_BUS_URL"])
        self.valkey = replace(self.valkey, url=os.environ["TEST_STORE_URL"])


if __name__ == "__main__":
    up.Stack = OtherServersStack  # type: ignore[misc]
    sys.exit(run_command(sys.argv[1:]))
