"""Alerts as a gateway evaluates them: over its own metrics, in time, and what it cannot know."""

from pathlib import Path
from typing import Any

import pytest

from omnibus.metrics import GATEWAY, PROCESS
from omnibus_gateway.console.alerts import INTERVAL_SECONDS, KEPT_SECONDS, AlertWatch, render_summary
from tests.unit.gateway.house import TEXT, ToyGateway, start_toy_gateway

MODEL = "alert-model"
START = 1000.0


def find_rule(watch: AlertWatch, name: str) -> dict[str, Any]:
    [rule] = [each for each in watch.describe()["data"] if each["name"] == name]
    return rule


def own_states(rule: dict[str, Any], model: str = MODEL) -> list[str]:
    """States of a rule's alerts for one model; other tests of this process count as well."""
    return [each["state"] for each in rule["alerts"] if each["labels"].get("model") == model]


async def test_an_alert_is_pending_then_fires_and_ends(home: ToyGateway):
    watch = AlertWatch(home.router)
    await watch.check(START)
    GATEWAY.request_counter(MODEL, "ok").inc(50)
    GATEWAY.request_counter(MODEL, "stage_failed").inc(2)

    states, now = [], START
    while now < START + 2 * KEPT_SECONDS:
        now += INTERVAL_SECONDS
        if now < START + 400:  # it keeps failing
            GATEWAY.request_counter(MODEL, "ok").inc(5)
            GATEWAY.request_counter(MODEL, "stage_failed").inc()
        await watch.check(now)
        rule = find_rule(watch, "OmnibusErrors")
        states.append((own_states(rule) or ["ok"])[0])

    order = list(dict.fromkeys(states))
    assert order == ["pending", "firing", "ok"]
    assert states.index("firing") * INTERVAL_SECONDS == 300
    assert states.count("firing") * INTERVAL_SECONDS >= 300


async def test_an_active_alert_has_its_labels_value_and_summary(home: ToyGateway):
    watch = AlertWatch(home.router)
    await watch.check(START)
    GATEWAY.request_counter(MODEL, "stage_failed").inc(1)
    GATEWAY.request_counter(MODEL, "ok").inc(3)
    await watch.check(START + INTERVAL_SECONDS)

    [alert] = [each for each in find_rule(watch, "OmnibusErrors")["alerts"] if each["labels"]["model"] == MODEL]
    assert alert["summary"] == f"{MODEL}: 25 % of its requests fail"
    assert (alert["value"], alert["since"]) == (pytest.approx(0.25), START + INTERVAL_SECONDS)


async def test_missing_executors_are_found_without_the_planner_s_metrics(tmp_path: Path):
    async with start_toy_gateway(tmp_path) as home:
        home.serve(TEXT)
        watch = AlertWatch(home.router)
        await watch.check(START)
        missing = find_rule(watch, "OmnibusExecutorsMissing")
        await home.executor(TEXT, "L", "thinker")
        await watch.check(START + INTERVAL_SECONDS)
        there = find_rule(watch, "OmnibusExecutorsMissing")

    assert own_states(missing, TEXT) == ["pending"]
    assert missing["alerts"][0]["summary"] == f"{TEXT}: 1 executors of L are missing"
    assert own_states(there, TEXT) == []


async def test_a_lost_bus_is_an_alert_of_this_gateway_only(home: ToyGateway):
    PROCESS.bus.set_value(lambda: 0.0)
    watch = AlertWatch(home.router)
    try:
        await watch.check(START)
        rule = find_rule(watch, "OmnibusBusLost")
    finally:
        PROCESS.bus.set_values(None)

    assert rule["only_here"]
    assert rule["alerts"][0]["summary"] == f"gateway at {home.router.gateway} has no connection to NATS"


async def test_a_rule_that_needs_prometheus_says_why(home: ToyGateway):
    watch = AlertWatch(home.router)
    await watch.check(START)

    reasons = {each["name"]: each["reason"] for each in watch.describe()["data"] if each["state"] == "needs_prometheus"}

    assert reasons["OmnibusServiceDown"] == "up is a metric of Prometheus"
    assert reasons["OmnibusArenaFull"] == "omnibus_arena_used_bytes is a metric of sidecars"
    assert reasons["OmnibusPlansDiffer"] == "it compares all gateways"
    assert reasons["OmnibusCacheFull"] == "vllm:num_preemptions_total is a metric of vLLM engines"
    assert "OmnibusErrors" not in reasons
    assert all(" is a metric of " in reason or reason == "it compares all gateways" for reason in reasons.values())


async def test_samples_are_bounded(home: ToyGateway):
    watch = AlertWatch(home.router)
    for number in range(500):
        await watch.check(START + number * INTERVAL_SECONDS)

    assert len(watch._snapshots) == KEPT_SECONDS / INTERVAL_SECONDS + 1


async def test_operators_read_the_state_of_each_rule(home: ToyGateway):
    await home.console.alerts.check(START)

    document = (await home.http.get("/v1/console/alerts")).json()

    assert document["gateway"] == home.router.gateway
    assert {each["state"] for each in document["data"]} <= {"ok", "pending", "firing", "needs_prometheus"}
    assert all(each["summary"] and each["runbook"] for each in document["data"])


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ $labels.model }}: {{ $value | humanizePercentage }} fail", "m: 250 % fail"),
        ("it takes {{ $value | humanizeDuration }}", "it takes 2.5 s"),
        ("{{ $value | humanize }} a second ({{ $labels.reason }})", "2.5 a second ()"),
        ("{{ $value }} executors", "2.5 executors"),
    ],
)
def test_a_summary_has_labels_and_values(template: str, text: str):
    assert render_summary(template, {"model": "m"}, 2.5) == text
    assert "{{" not in render_summary(template, None, 0.0)
