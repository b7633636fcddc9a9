"""``python -m services.sidecar``: the former name of ``python -m omnibus_sidecar``, for one more release."""

import runpy
import sys
import warnings
from pathlib import Path

_SERVICES = Path(__file__).parents[1]
sys.path[1:1] = [str(_SERVICES.parent / "shared"), *map(str, sorted(_SERVICES.iterdir()))]
warnings.warn("services.sidecar is now omnibus_sidecar", FutureWarning, stacklevel=1)
runpy.run_module("omnibus_sidecar", run_name="__main__", alter_sys=True)
