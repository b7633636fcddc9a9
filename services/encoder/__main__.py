"""``python -m services.encoder``: the former name of ``python -m omnibus_encoder``, for one more release."""

import runpy
import sys
import warnings
from pathlib import Path

_SERVICES = Path(__file__).parents[1]
sys.path[1:1] = [str(_SERVICES.parent / "shared"), *map(str, sorted(_SERVICES.iterdir()))]
warnings.warn("services.encoder is now omnibus_encoder", FutureWarning, stacklevel=1)
runpy.run_module("omnibus_encoder", run_name="__main__", alter_sys=True)
