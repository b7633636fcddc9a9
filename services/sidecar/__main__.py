"""``python -m services.sidecar``: the arena of this node, configured by ``OMNIBUS_SIDECAR_*``."""

import sys

from omnibus.service import run_service
from services.sidecar.service import SidecarService

if __name__ == "__main__":
    sys.exit(run_service("sidecar", SidecarService))
