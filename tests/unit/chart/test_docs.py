"""The chart accepts everything that docs/kubernetes.md shows."""

import re
from typing import Any

import pytest
import yaml

from tests.kube.helm import CHART, merge_values, read_overlay
from tests.unit.chart.shapes import Renders, read_templates

DOCS = (CHART.parents[2] / "docs" / "kubernetes.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)
#: A value's name in the tables: words with dots between.
NAMES = [name for name in re.findall(r"`((?:[a-z][A-Za-z]+\.)+[a-z][A-Za-z]+)`", DOCS) if not name.endswith(".yaml")]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split(":")[0])
def test_the_values_that_are_shown_render(render_chart: Renders, block: str):
    objects = render_chart(merge_values(read_overlay("values-gpu.yaml"), yaml.safe_load(block)))

    assert sorted(read_templates(objects)) == ["encoder", "generator", "llm"]


def test_the_values_that_are_named_exist():
    whole = yaml.safe_load((CHART / "values.yaml").read_text())

    for name in NAMES:
        value: Any = whole
        for part in name.split("."):
            if value == {}:
                break  # any value that the schema allows
            assert part in value, name
            value = value[part]
    assert len(NAMES) > 10
