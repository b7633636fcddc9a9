"""``python -m omnibus_gateway``: configured by ``OMNIBUS_GATEWAY_*``, ``_BUS_*``, ``_STORE_*``, ``_SIDECAR_*``."""

import sys

from omnibus.service import run_service
from omnibus_gateway.service import GatewayService

if __name__ == "__main__":
    sys.exit(run_service("gateway", GatewayService))
