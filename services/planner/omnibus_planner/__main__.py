"""``python -m omnibus_planner``: configured by ``OMNIBUS_PLANNER_*``, ``_STORE_*`` and ``_BUS_*``."""

import sys

from omnibus.service import run_service
from omnibus_planner.service import PlannerService

if __name__ == "__main__":
    sys.exit(run_service("planner", PlannerService))
