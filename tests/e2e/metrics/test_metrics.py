"""Every service emits its metrics in a load run.

They include all that panels and alerts query.
"""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from omnibus.metrics.collectors import REGISTRY
from tests import observed as kept
from tests.e2e.metrics import tenants
from tests.e2e.metrics.conftest import REASONS, SERVICES, Observed
from tests.e2e.system import OMNI

pytestmark = pytest.mark.e2e

#: Models that the apps of the run bring.
APPS = {"shout", "echo", "again"}
#: Every label that there is, and why it has few values.
FEW = {
    "app": "registered apps",
    "code": "the tree of errors",
    "component": "components of models",
    "consumer": "durable consumers",
    "currency": "that of the plan",
    "direction": "in and out",
    "executor": "one of a process",
    "how": "a few words",
    "le": "buckets",
    "model": "models of the plan",
    "node": "one of a process, and the nodes that it pulls from",
    "option": "options of the plan",
    "outcome": "a few words",
    "output": "outputs of tasks",
    "path": "paths of the plan",
    "quantity": "a few words",
    "reason": "a few words",
    "result": "met and missed",
    "service": "six services",
    "source": "components of models",
    "stage": "components of models",
    "state": "a few words",
    "stream": "streams",
    "target": "components of models",
    "tenant": "whom the operator gave keys, and no more than are told apart",
    "type": "request types of the plan",
    "version": "one of a process",
}


def test_every_service_serves_its_metrics(observation: Observed):
    assert set(observation.texts) == SERVICES
    assert len(observation.texts["llm"]) >= 2
    for service, texts in observation.texts.items():
        for text in texts:
            assert f'omnibus_ready{{service="{service}"}} 1.0' in text
            assert re.search(r"^process_resident_memory_bytes ", text, re.MULTILINE)


def test_a_gauge_is_told_by_the_one_who_knows_it(observation: Observed):
    """A gauge is emitted only by the process that can measure it.

    A process that reports 0 for an unknown value would distort a minimum or a difference over all processes.
    """
    tellers: dict[str, set[str]] = {}
    for service, texts in observation.texts.items():
        for family in (family for text in texts for family in text_string_to_metric_families(text)):
            if family.type == "gauge" and family.samples:
                tellers.setdefault(family.name, set()).add(service)

    executors = SERVICES - {"gateway", "planner", "sidecar"}
    for name in ("omnibus_plan_epoch", "omnibus_plan_created_seconds", "omnibus_gateway_inflight"):
        assert tellers[name] == {"gateway"}
    assert tellers["omnibus_executor_inflight"] == tellers["omnibus_executor_credits"] == executors
    assert tellers["omnibus_arena_leases"] == {"sidecar"}
    assert tellers["omnibus_planner_epoch"] == tellers["omnibus_stream_bytes"] == {"planner"}


def test_panels_and_alerts_ask_only_for_what_a_load_run_emits(observation: Observed):
    assert kept.find_unanswered(kept.read_expressions(), {**kept.GOALS, **observation.emitted}) == []


def test_values_that_queries_name_are_emitted(observation: Observed):
    def list_values(metric: str, label: str) -> set[str]:
        return {labels[label] for labels in observation.emitted[metric]}

    assert {"text", "audio"} <= list_values("omnibus_first_output_seconds_bucket", "output")
    assert {"hits", "misses"} <= list_values("omnibus_encoder_results_total", "how")
    assert {"expired", "forced"} <= list_values("omnibus_arena_freed_total", "reason")
    assert list_values("omnibus_rejected_total", "reason") >= REASONS
    assert {"ok", "overloaded", "not_found"} <= list_values("omnibus_requests_total", "code")


def test_tenants_are_told_apart(observation: Observed):
    users = {labels["tenant"] for labels in observation.emitted["omnibus_tenant_gpu_seconds_total"]}
    refusals = {(labels["tenant"], labels["reason"]) for labels in observation.emitted["omnibus_tenant_refused_total"]}

    assert users == {"search", "single", "metered"}
    assert {("rated", "rate"), ("single", "concurrent"), ("metered", "gpu_seconds")} <= refusals
    assert {("search", "queue"), ("search", "turn")} <= refusals
    assert users | {tenant for tenant, _ in refusals} == set(tenants.LIMITS)


def test_who_works_is_nobody_when_all_is_over(observation: Observed):
    [text] = observation.texts["gateway"]

    assert f'omnibus_admission_working{{model="{OMNI}"}} 0.0' in text
    assert f'omnibus_admission_waiting{{model="{OMNI}"}} 0.0' in text


def test_an_input_that_broke_its_engine_is_told_once(observation: Observed):
    [text] = observation.texts["gateway"]
    counts = re.findall(r'^omnibus_deadletters_total\{model="(.*)",reason="(.*)"\} ([1-9].*)$', text, re.MULTILINE)

    assert counts == [("again", "failed", "1.0")]


def test_edges_between_components_are_told_apart(observation: Observed):
    edges = {(labels["source"], labels["target"]) for labels in observation.emitted["omnibus_transfer_bytes_total"]}

    assert {("vision", "thinker"), ("audio", "thinker"), ("vocoder", "gateway"), ("gateway", "media")} <= edges


def test_the_plan_and_what_came_have_the_same_labels(observation: Observed):
    plan_labels, came = (
        {(labels["model"], labels["type"], labels["path"]) for labels in observation.emitted[name]}
        for name in ("omnibus_path_planned_share", "omnibus_path_requests_total")
    )

    assert came == plan_labels
    assert (OMNI, "vision+audio+thinker+talker+vocoder", "E>L>V") in came


def test_labels_have_few_values(observation: Observed):
    labels = {label for series in observation.emitted.values() for one in series for label in one}
    family_labels = {label for family in REGISTRY.collect() for sample in family.samples for label in sample.labels}

    assert labels | family_labels <= FEW.keys()
    assert {one["model"] for series in observation.emitted.values() for one in series if "model" in one} <= {
        OMNI,
        *APPS,
        "",
    }
    assert {one["consumer"] for one in observation.emitted["omnibus_stream_consumer_pending"]} == {"slow"}
    assert max(len(series) for name, series in observation.emitted.items() if not name.endswith("_bucket")) < 100
