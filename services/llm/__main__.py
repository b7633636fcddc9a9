"""``python -m services.llm``: the former name of ``python -m omnibus_llm``, for one more release."""

import runpy
import sys
import warnings
from pathlib import Path

_SERVICES = Path(__file__).parents[1]
sys.path[1:1] = [str(_SERVICES.parent / "shared"), *map(str, sorted(_SERVICES.iterdir()))]
warnings.warn("services.llm is now omnibus_llm", FutureWarning, stacklevel=1)
runpy.run_module("omnibus_llm", run_name="__main__", alter_sys=True)
