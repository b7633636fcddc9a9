"""``python -m services.gateway``: configured by ``OMNIBUS_GATEWAY_*``, ``_BUS_*``, ``_STORE_*``, ``_SIDECAR_*``."""

import sys

from omnibus.service import run_service
from services.gateway.service import GatewayService

if __name__ == "__main__":
    sys.exit(run_service("gateway", GatewayService))
