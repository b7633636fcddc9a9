"""``python -m omnibus_sidecar``: the arena of this node, configured by ``OMNIBUS_SIDECAR_*``."""

import sys

from omnibus.service import run_service
from omnibus_sidecar.service import SidecarService

if __name__ == "__main__":
    sys.exit(run_service("sidecar", SidecarService))
