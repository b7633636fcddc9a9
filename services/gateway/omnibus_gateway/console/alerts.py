"""Alert rules, evaluated in the gateway for installations without Prometheus.

``alerts.json`` is made from ``deploy/observability/alerts.yml``, the only source of the rules, and from their runbook.
A gateway evaluates the rules whose metrics it has, over its own values. Other rules need Prometheus, which sees all
services.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from omnibus.cluster.presence import replica_counts
from omnibus.metrics import ARENA, ENCODER, ENGINE, EXECUTOR, GATEWAY, NODES, PLANNER, PROCESS, STREAMS, TENANTS
from omnibus_gateway.console.expressions import Expression, Labels, Snapshot, Vector, evaluate, metric_names
from omnibus_gateway.core import Router

RULES = Path(__file__).with_name("alerts.json")
#: Seconds between two samples. Rules see values of the last ``KEPT_SECONDS``, the longest range of a rule.
INTERVAL_SECONDS, KEPT_SECONDS = 15.0, 900.0
#: Services by their metrics, for rules that a gateway cannot evaluate.
_OTHER_SERVICES = (
    ("the planner", (PLANNER, STREAMS)),
    ("sidecars", (ARENA, NODES)),
    ("executors", (EXECUTOR, ENCODER, ENGINE)),
)
#: Metrics that a gateway also knows of the plan and its executors.
_WANTED, _READY = "omnibus_planner_executors_wanted", "omnibus_planner_executors_ready"
#: Metrics of which one gateway sees only its own, so that a comparison says nothing.
_OF_ALL_GATEWAYS = frozenset({"omnibus_plan_epoch"})
_SUFFIX = re.compile(r"_(total|bucket|sum|count)$")
_PLACEHOLDER = re.compile(r"\{\{ \$(labels\.(?P<label>\w+)|value)( \| (?P<format>\w+))? \}\}")
_STATES = ("ok", "pending", "firing")


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One alert: ``text`` is its expression, ``summary`` a template, ``runbook`` the paragraphs that say what to do."""

    name: str
    severity: str
    summary: str
    text: str
    expression: Expression
    for_seconds: float
    runbook: tuple[str, ...]


class ActiveAlert(NamedTuple):
    """Labels for which a rule's condition holds, since when, and its value."""

    since: float
    value: float


@cache
def read_rules() -> tuple[Rule, ...]:
    """Return the shipped rules."""
    return msgspec.json.decode(RULES.read_bytes(), type=tuple[Rule, ...])


class RuleState:
    """A rule's state over time. ``reason`` says why it needs Prometheus, or is empty."""

    def __init__(self, rule: Rule, now: float) -> None:
        self.rule = rule
        self.reason = _missing_reason(rule)
        self.state = "ok" if not self.reason else "needs_prometheus"
        self.since = self._last_check = now
        self._active: dict[Labels, ActiveAlert] = {}

    def update(self, snapshots: Sequence[Snapshot]) -> None:
        """Evaluate the rule at the last of ``snapshots``."""
        if self.reason:
            return
        now = self._last_check = snapshots[-1].at
        self._active = {
            labels: ActiveAlert(self._active[labels].since if labels in self._active else now, value)
            for labels, value in evaluate(self.rule.expression, snapshots).items()
        }
        state = max(map(self._alert_state, self._active.values()), key=_STATES.index, default="ok")
        if state != self.state:
            self.state, self.since = state, now

    def _alert_state(self, alert: ActiveAlert) -> str:
        return "firing" if self._last_check - alert.since >= self.rule.for_seconds else "pending"

    def describe(self) -> dict[str, Any]:
        """Return the rule, its state, and the labels for which it is active."""
        alerts = [
            {
                "labels": dict(labels),
                "state": self._alert_state(alert),
                "since": alert.since,
                "value": alert.value,
                "summary": render_summary(self.rule.summary, dict(labels), alert.value),
            }
            for labels, alert in self._active.items()
        ]
        return {
            "name": self.rule.name,
            "severity": self.rule.severity,
            "state": self.state,
            "since": self.since,
            "summary": render_summary(self.rule.summary, None, 0.0),
            "expression": self.rule.text,
            "for_seconds": self.rule.for_seconds,
            "runbook": list(self.rule.runbook),
            "reason": self.reason,
            "only_here": _uses_own_process(self.rule),
            "alerts": alerts,
        }


class AlertWatch:
    """Samples the metrics of this gateway, and evaluates the rules."""

    def __init__(self, router: Router, rules: Sequence[Rule] | None = None) -> None:
        self._router = router
        now = time.time()
        self._states = [RuleState(rule, now) for rule in (rules if rules is not None else read_rules())]
        names = {name for each in self._states if not each.reason for name in metric_names(each.rule.expression)}
        self._collectors = {name: _own_metrics()[_base_name(name)] for name in sorted(names - {_WANTED, _READY})}
        self._snapshots: deque[Snapshot] = deque()

    async def run(self) -> None:
        """Evaluate the rules until cancelled."""
        while True:
            await self.check(time.time())
            await asyncio.sleep(INTERVAL_SECONDS)

    async def check(self, now: float) -> None:
        """Take a sample at the time ``now``, and evaluate the rules, in steps between which requests go on."""
        while self._snapshots and self._snapshots[0].at < now - KEPT_SECONDS:
            self._snapshots.popleft()
        self._snapshots.append(Snapshot(now, self._read_values()))
        for each in self._states:
            await asyncio.sleep(0)
            each.update(self._snapshots)

    def describe(self) -> dict[str, Any]:
        """Return the state of each rule, with the gateway that evaluates them."""
        return {"gateway": self._router.gateway, "data": [each.describe() for each in self._states]}

    def _read_values(self) -> dict[str, Vector]:
        own = {"instance": self._router.gateway, "job": "omnibus", "service": "gateway"}
        values = {
            name: {tuple(sorted((own | labels).items())): value for labels, value in _read_series(collector, name)}
            for name, collector in self._collectors.items()
        }
        return values | self._read_executors()

    def _read_executors(self) -> dict[str, Vector]:
        """Return the executors that the plan requires, and those of them that are ready."""
        plan = self._router.plan
        wanted = replica_counts(plan.models) if plan is not None else {}
        ready = [(each.model, each.option) for each in self._router.members.statuses() if each.state == "ready"]
        labels = {kind: (("model", kind.model), ("option", kind.option)) for kind in wanted}
        return {
            _WANTED: {labels[kind]: float(count) for kind, count in wanted.items()},
            _READY: {labels[kind]: float(ready.count((kind.model, kind.option))) for kind in wanted},
        }


def _read_series(collector: Any, name: str) -> Iterator[tuple[dict[str, str], float]]:
    for family in collector.collect():
        for sample in family.samples:
            if sample.name == name:
                yield sample.labels, sample.value


def _missing_reason(rule: Rule) -> str:
    """Return why a gateway cannot evaluate ``rule``; "" if it can."""
    for name in metric_names(rule.expression):
        if name in _OF_ALL_GATEWAYS:
            return "it compares all gateways"
        if name not in (_WANTED, _READY) and _base_name(name) not in _own_metrics():
            return f"{name} is a metric of {_find_service(name)}"
    return ""


def _find_service(name: str) -> str:
    for service, areas in _OTHER_SERVICES:
        if _base_name(name) in _metrics_of(*areas):
            return service
    return "vLLM engines" if name.startswith("vllm:") else "Prometheus"


def _uses_own_process(rule: Rule) -> bool:
    """Return whether every service has the metrics of ``rule``, of which a gateway sees its own."""
    return any(_base_name(name) in _metrics_of(PROCESS) for name in metric_names(rule.expression))


@cache
def _own_metrics() -> dict[str, Any]:
    return _metrics_of(GATEWAY, TENANTS, PROCESS)


def _metrics_of(*areas: Any) -> dict[str, Any]:
    """Return the metrics of ``areas`` by their base name."""
    metrics = (each for area in areas for each in vars(type(area)).values() if hasattr(each, "describe"))
    return {family.name: each for each in metrics for family in each.describe()}


def _base_name(name: str) -> str:
    return _SUFFIX.sub("", name)


def render_summary(template: str, labels: dict[str, str] | None, value: float) -> str:
    """Fill in ``template``; without ``labels``, it names what will be there."""

    def fill(found: re.Match[str]) -> str:
        label = found["label"]
        if labels is None:
            return f"<{label or 'value'}>"
        return labels.get(label, "") if label else _FORMATS[found["format"] or ""](value)

    return _PLACEHOLDER.sub(fill, template)


def _format_duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 60 else f"{seconds / 60:.3g} min"


_FORMATS = {
    "": lambda value: f"{value:g}",
    "humanize": lambda value: f"{value:.3g}",
    "humanizePercentage": lambda value: f"{100 * value:.3g} %",
    "humanizeDuration": _format_duration,
}
