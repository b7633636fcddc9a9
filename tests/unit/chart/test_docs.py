"""The chart accepts everything that docs/kubernetes.md shows."""

import re
from typing import Any

import pytest
import yaml

from tests.kube.helm import CHART, merge, overlay
from tests.unit.chart.shapes import Renders, templates

DOCS = (CHART.parents[2] / "docs" / "kubernetes.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)
#: A value's name in the tables: words with dots between.
NAMES = [name for name in re.findall(r"`((?:[a-z][A-Za-z]+\.)+[a-z][A-Za-z]+)`", DOCS) if not name.endswith(".yaml")]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split(":")[0])
def test_the_values_that_are_shown_render(rendered: Renders, block: str):
    objects = rendered(merge(overlay("values-gpu.yaml"), yaml.safe_load(block)))

    assert sorted(templates(objects)) == ["encoder", "generator", "llm"]


def test_the_values_that_are_named_exist():
    whole = yaml.safe_load((CHART / "values.yaml").read_text())

    for name in NAMES:
        found: Any = whole
        for part in name.split("."):
            if found == {}:
                break  # any value that the schema allows
            assert part in found, name
            found = found[part]
    assert len(NAMES) > 10
