"""Models as the profiler sees them."""

import json
from typing import Any

from omnibus.families import catalog
from omnibus.profiling import measured_model
from omnibus.profiling.measured_model import Subject


def declare_model(family: str, **changes: Any) -> str:
    return json.dumps({"models": {"m": {**catalog.model_declaration(family, "/models/m"), **changes}}})


def make_vl_subject(**changes: Any) -> Subject:
    return measured_model.find_subject("m", declare_model("qwen2_5_vl", **changes))


def make_omni_subject(**changes: Any) -> Subject:
    return measured_model.find_subject("m", declare_model("qwen2_5_omni", **changes))
