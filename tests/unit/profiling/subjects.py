"""Models as the profiler sees them."""

import json
from typing import Any

from omnibus.families import catalog
from omnibus.profiling import measured_model
from omnibus.profiling.measured_model import Subject


def declared(family: str, **changes: Any) -> str:
    return json.dumps({"models": {"m": {**catalog.model_declaration(family, "/models/m"), **changes}}})


def vl(**changes: Any) -> Subject:
    return measured_model.find_subject("m", declared("qwen2_5_vl", **changes))


def omni(**changes: Any) -> Subject:
    return measured_model.find_subject("m", declared("qwen2_5_omni", **changes))
