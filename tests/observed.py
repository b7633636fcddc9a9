"""Committed dashboards and alerts, and their queries without matching real metrics."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests import promql

HERE = Path(__file__).parents[1] / "deploy" / "observability"
#: Labels that Prometheus adds to scraped metrics, and its own metrics.
OF_TARGETS, OF_PROMETHEUS = {"job", "instance", "service"}, {"up"}
#: Metrics of vLLM engines only, and of sidecars that pull from each other only: parts of names of files and groups.
VLLM, LINKS = "vllm", "links"

#: Label sets by the name of a sample.
Emitted = dict[str, list[dict[str, str]]]
#: What only models with goals of latency make a gateway say.
GOALS: Emitted = {"omnibus_goal_requests_total": [{"model": "any", "result": result} for result in ("met", "missed")]}


def read_alerts() -> dict[str, list[dict[str, Any]]]:
    """Rules by the name of their group."""
    return {group["name"]: group["rules"] for group in yaml.safe_load((HERE / "alerts.yml").read_text())["groups"]}


def read_dashboards() -> dict[str, dict[str, Any]]:
    return {file.stem: json.loads(file.read_text()) for file in sorted((HERE / "grafana/dashboards").glob("*.json"))}


def read_expressions(only: str = "") -> dict[str, str]:
    """Expressions by location: those of ``VLLM`` or ``LINKS``, or all others."""
    queries = {
        f"{name}: {panel['title']}: {target['legendFormat']}": target["expr"]
        for name, board in read_dashboards().items()
        if _special_part(name) == only
        for panel in board["panels"]
        for target in panel.get("targets", ())
    }
    rules = [rule for name, group in read_alerts().items() if _special_part(name) == only for rule in group]
    return queries | {f"alert {rule['alert']}": rule["expr"] for rule in rules}


def _special_part(name: str) -> str:
    return next((each for each in (VLLM, LINKS) if each in name), "")


def read_samples(texts: Iterable[str]) -> Emitted:
    """All samples of these expositions."""
    label_sets: Emitted = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                label_sets.setdefault(sample.name, []).append(dict(sample.labels))
    return label_sets


def find_unanswered(expressions: Mapping[str, str], series_by_name: Emitted) -> list[str]:
    """Describe queried metrics that no service emits."""
    return [
        f"{where}: {fault}"
        for where, text in expressions.items()
        for fault in _find_faults(promql.read_query(text), series_by_name)
    ]


def _find_faults(query: promql.QueryNames, series_by_name: Emitted) -> Iterator[str]:
    there = set(OF_TARGETS)
    for selector in query.selectors:
        if selector.name in OF_PROMETHEUS:
            continue
        series = series_by_name.get(selector.name)
        if not series:
            yield f"nobody emits {selector.name}"
            continue
        there |= {label for labels in series for label in labels}
        for matcher in selector.matchers:
            yield from _find_unmatched(selector.name, matcher, series)
    for label in query.labels - there:
        yield f"nothing in it has a label {label}"


def _find_unmatched(name: str, matcher: promql.Matcher, series: list[dict[str, str]]) -> Iterator[str]:
    values = {labels[matcher.label] for labels in series if matcher.label in labels}
    if not values:
        yield f"{name} has no label {matcher.label}"
    elif matcher.sign == "=~" and "$" not in matcher.value:
        try:
            re.compile(matcher.value)
        except re.error as error:
            yield f"{matcher.value}: {error}"
