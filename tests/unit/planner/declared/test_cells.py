"""Models declared in cells: a number of equal cells, each with all options."""

from typing import Any

import msgspec
import pytest

from omnibus.cells import cell_shares
from omnibus.errors import BadRequest
from omnibus.plan import ModelPlan
from omnibus_planner.declared import declarations_file

A: dict[str, Any] = {"family": "qwen2_5_vl", "checkpoint": "/a"}


def build_plans(**models: dict[str, Any]) -> dict[str, ModelPlan]:
    return declarations_file.build_static_plans(msgspec.convert(models, dict[str, declarations_file.DeclaredModel]))


def test_each_cell_has_all_options_and_an_equal_share():
    plan = build_plans(a={**A, "cells": 2})["a"]

    assert list(plan.options) == ["E@c1", "L@c1", "EL@c1", "E@c2", "L@c2", "EL@c2"]
    assert [path.name for path in plan.types["thinker"]] == ["L@c1", "EL@c1", "L@c2", "EL@c2"]
    assert cell_shares(plan) == {"c1": 0.5, "c2": 0.5}


OTHER: dict[str, Any] = {
    "shares": {"vision": "a"},
    "options": {"L": {"components": ["thinker"], "service": "llm"}},
    "paths": [{"options": ["a/E", "L"]}],
}
CELL_OF_ITS_OWN = {"E": {"components": ["vision"], "service": "encoder", "cell": "c1"}}
FAULTS: dict[str, tuple[dict[str, dict[str, Any]], str]] = {
    "too many": ({"a": {**A, "cells": 65}}, "model a: has 65 cells: it must have 0 to 64"),
    "planned": ({"a": {**A, "cells": 2, "planned": {}}}, "model a: is planned: its 'cells' are those of 'planned'"),
    "borrows": ({"a": A, "b": {**A, **OTHER, "cells": 2}}, "model b: has cells, which share nothing"),
    "lends": ({"a": {**A, "cells": 2}, "b": {**A, **OTHER}}, "model b: shares vision with 'a', which is in cells"),
    "an option": ({"a": {**A, "options": CELL_OF_ITS_OWN}}, "model a: option E has 'cell', which only plans have"),
}


@pytest.mark.parametrize(("models", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_cells_that_cannot_be_are_named(models: dict[str, dict[str, Any]], fault: str):
    with pytest.raises(BadRequest, match=f"^{fault}"):
        build_plans(**models)
