"""Each version of Kubernetes accepts the chart's objects for any values."""

import json
from typing import Any

import msgspec
import pytest

from omnibus import metrics, settings
from omnibus.bus import permissions
from omnibus.cluster.desired import DesiredExecutors, ExecutorKind, desired_executors
from omnibus.executor.settings import ExecutorSettings
from omnibus.plan import Plan
from omnibus_planner.declared import declarations_file
from tests.kube import schemas
from tests.kube import values as known
from tests.kube.helm import Values
from tests.unit.chart.shapes import DECLARED, SHAPES, Renders, env, of, pods, templates, values, whole


@pytest.mark.parametrize("shape", SHAPES)
def test_every_version_of_kubernetes_takes_all_objects(rendered: Renders, shape: str):
    objects = whole(rendered(SHAPES[shape]))

    assert [fault for version in schemas.VERSIONS for each in objects for fault in schemas.faults(each, version)] == []


@pytest.mark.parametrize("version", schemas.VERSIONS)
def test_a_field_that_a_version_does_not_know_is_found(version: str):
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "a"}]}}
    wrong = {**pod, "spec": {"containers": [{"name": "a", "privilegd": True}]}}
    group = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "a"}}
    inner = {"leaderWorkerTemplate": {"workerTemplate": {"spec": wrong["spec"]}}}

    assert schemas.faults(pod, version) == []
    assert "privilegd" in str(schemas.faults(wrong, version))
    assert "privilegd" in str(schemas.faults({**group, "spec": inner}, version))


@pytest.mark.parametrize("shape", SHAPES)
def test_names_are_unique_and_labels_lead_to_pods(rendered: Renders, shape: str):
    objects = rendered(SHAPES[shape])

    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)
    labels = [pod["metadata"]["labels"] for _, pod in pods(objects)]
    for each in objects:
        chosen = each["spec"].get("selector") or each["spec"].get("podSelector") if each.get("spec") else None
        chosen = (
            chosen.get("matchLabels", chosen)
            if each["kind"] not in ("ServiceMonitor", "PersistentVolumeClaim") and chosen
            else None
        )
        assert chosen is None or any(chosen.items() <= found.items() for found in labels), each["metadata"]["name"]


def test_prometheus_finds_every_pod_of_ours(rendered: Renders):
    objects = rendered(SHAPES["everything"])

    (monitor,) = of(objects, "ServiceMonitor").values()
    chosen = monitor["spec"]["selector"]["matchLabels"].items()
    (service,) = [each for each in of(objects, "Service").values() if chosen <= each["metadata"]["labels"].items()]
    found = {
        part for part, pod in pods(objects) if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    }
    assert found == {"gateway", "planner", "sidecar", "encoder", "llm", "generator"}
    assert service["spec"]["ports"][0]["name"] == monitor["spec"]["endpoints"][0]["port"]


@pytest.mark.parametrize("shape", SHAPES)
def test_services_are_told_only_what_they_know(rendered: Renders, shape: str):
    objects = rendered(SHAPES[shape])

    fields = {
        f"OMNIBUS_{area.area}_{field}".upper()
        for area in settings.Settings.__subclasses__()
        for field in area.__struct_fields__
    }
    ours = {name for _, pod in pods(objects) for name in told(pod) if name.startswith("OMNIBUS_")}
    ours -= {
        permissions.password_variable(user) for user in permissions.permissions_by_user()
    }  # for the bundled server
    assert ours - fields == set()
    assert "OMNIBUS_BUS_URL" in ours


def told(pod: dict) -> dict:
    return env(pod) if pod["spec"]["containers"][0].get("env") else {}


def test_variables_are_told_once_and_refer_to_those_before_them(rendered: Renders):
    for part, pod in pods(rendered(SHAPES["everything"])):
        names = [each["name"] for each in pod["spec"]["containers"][0]["env"]]
        assert len(set(names)) == len(names), part
        for source, user in (("NODE", "OMNIBUS_SIDECAR_NODE"), ("STORE_PASSWORD", "OMNIBUS_STORE_URL")):
            assert user not in names or f"$({source})" not in env(pod)[user] or names.index(source) < names.index(user)


def test_settings_reach_the_services_and_the_nearest_wins(rendered: Renders):
    asked = values(
        settings={"bus": {"record_bytes": 5 << 30}, "service": {"log_level": "DEBUG"}},
        gateway__settings__gateway={"deadline": 2.5, "allow_http": True},
        executors={"settings": {"executor": {"batch": 8}}, "llm": {"settings": {"executor": {"batch": 32}}}},
        env={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://otel:4318"},
    )

    found = {part: env(pod) for part, pod in pods(rendered(asked))}
    assert found["planner"]["OMNIBUS_BUS_RECORD_BYTES"] == "5368709120"
    assert found["sidecar"]["OMNIBUS_SERVICE_LOG_LEVEL"] == "DEBUG"
    assert found["gateway"]["OMNIBUS_GATEWAY_DEADLINE"] == "2.5"
    assert found["gateway"]["OMNIBUS_GATEWAY_ALLOW_HTTP"] == "true"
    assert found["gateway"]["OMNIBUS_GATEWAY_RECORD"] == "digest"
    assert [found[part]["OMNIBUS_EXECUTOR_BATCH"] for part in ("encoder", "llm")] == ["8", "32"]
    assert found["generator"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://otel:4318"
    for part, area in {"gateway": settings.GatewaySettings, "encoder": ExecutorSettings}.items():
        settings.read_settings(area, {name: value for name, value in found[part].items() if isinstance(value, str)})


def test_a_gateway_knows_the_name_of_its_ingress_unless_names_are_set(rendered: Renders):
    ingress = {"host": "api.example.com"}
    own = {"ingress": ingress, "settings": {"gateway": {"allowed_hosts": "a.test"}}}

    names = [
        env(
            of(rendered(values("values-cpu.yaml", gateway=gateway)), "Deployment")["om-gateway"]["spec"]["template"]
        ).get("OMNIBUS_GATEWAY_ALLOWED_HOSTS")
        for gateway in ({}, {"ingress": ingress}, own)
    ]

    assert names == [None, "api.example.com", "a.test"]


def test_the_schema_of_values_knows_the_settings_and_models_of_the_code():
    written = json.loads(known.SCHEMA.read_text())["$defs"]

    assert {name: written[name] for name in known.parts()} == known.parts(), "run python -m tests.kube.values"


def test_the_planner_runs_executors_unless_something_else_scales_them(rendered: Renders):
    planned, fixed = rendered(SHAPES["gpu"]), rendered(SHAPES["hpa"])

    assert sorted(templates(planned)) == ["encoder", "generator", "llm"]
    assert "om-planner" in of(planned, "Role")
    assert env(of(planned, "Deployment")["om-planner"]["spec"]["template"])["OMNIBUS_PLANNER_RECONCILE"] == "kubernetes"
    assert of(fixed, "Role") == {}
    assert "OMNIBUS_PLANNER_RECONCILE" not in env(of(fixed, "Deployment")["om-planner"]["spec"]["template"])


@pytest.mark.parametrize(("shape", "kind"), [("keda", "ScaledObject"), ("hpa", "HorizontalPodAutoscaler")])
def test_each_option_is_a_workload_that_its_scaler_finds(rendered: Renders, shape: str, kind: str):
    objects = rendered(SHAPES[shape])

    scaled = of(objects, kind)
    for name, scaler in scaled.items():
        made = of(objects, "Deployment")[scaler["spec"]["scaleTargetRef"]["name"]]
        assert "replicas" not in made["spec"]
        labels = made["spec"]["template"]["metadata"]["labels"]
        assert made["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert labels["omnibus/executor"] == name
    options = {env(of(objects, "Deployment")[name]["spec"]["template"])["OMNIBUS_EXECUTOR_OPTION"] for name in scaled}
    assert options == {"E", "L"}


def test_keda_asks_for_a_metric_that_executors_have(rendered: Renders):
    (query, *_) = [
        each["spec"]["triggers"][0]["metadata"]["query"]
        for each in of(rendered(SHAPES["keda"]), "ScaledObject").values()
    ]

    name = query.removeprefix("sum(").partition("{")[0]
    assert name in {family.name for family in metrics.REGISTRY.collect()}
    assert 'omnibus_executor="om-qwen-' in query


def test_without_keda_the_load_of_processors_scales(bare: Renders):
    objects = bare(SHAPES["keda"])

    assert of(objects, "ScaledObject") == {}
    assert len(of(objects, "HorizontalPodAutoscaler")) == 2


def test_options_may_differ_from_their_service(rendered: Renders):
    asked = values(
        executors={
            "llm": {"pod": {"nodeSelector": {"pool": "a"}}},
            "options": {"q/L": {"service": "llm", "pod": {"nodeSelector": {"gpu": "{gpu}"}}, "env": {"A": "1"}}},
        },
    )

    found = templates(rendered(asked))
    assert found["llm"]["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "a"}
    assert found["q/L"]["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "a", "gpu": "{gpu}"}
    assert env(found["q/L"]["spec"]["template"])["A"] == "1"


def test_options_that_the_planner_does_not_run_are_told_the_same(rendered: Renders):
    made = of(rendered(values("values-gpu.yaml", models=DECLARED, executors__scaling="none")), "Deployment").values()

    found = {env(each["spec"]["template"]).get("OMNIBUS_EXECUTOR_OPTION"): each for each in made}
    for kind, asked in declarations(DECLARED).items():
        told = {name: value for name, value in asked.env.items() if name not in UNSAID}
        assert env(found[kind.option]["spec"]["template"]).items() >= told.items()
        assert found[kind.option]["spec"]["replicas"] == asked.replicas
    limits = found["L"]["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    told = env(found["L"]["spec"]["template"])
    assert limits == {"memory": "64Gi", "nvidia.com/gpu": "2"}
    assert (told["OMNIBUS_EXECUTOR_DEVICE"], told["OMNIBUS_VLLM_TENSOR_PARALLEL"]) == ("cuda", "2")


def test_the_engines_settings_of_an_option_reach_its_executors_without_the_planner(rendered: Renders):
    model: Any = DECLARED["models"]["qwen"]
    option = {**model["options"]["L"], "gpus": 4, "vllm": {"pipeline_parallel": 2, "quantization": "fp8"}}
    declared = {"models": {"q": {**model, "options": {**model["options"], "L": option}}}}

    made = of(rendered(values("values-gpu.yaml", models=declared, executors__scaling="none")), "Deployment").values()

    found = {
        env(each["spec"]["template"]).get("OMNIBUS_EXECUTOR_OPTION"): env(each["spec"]["template"]) for each in made
    }
    told = {"PIPELINE_PARALLEL": "2", "QUANTIZATION": "fp8", "TENSOR_PARALLEL": "2"}
    assert found["L"].items() >= {f"OMNIBUS_VLLM_{name}": value for name, value in told.items()}.items()


#: Values that an executor derives from its family, and the origin of plans.
UNSAID = {"OMNIBUS_EXECUTOR_ORIGIN", "OMNIBUS_EXECUTOR_TASKS", "OMNIBUS_EXECUTOR_ENGINE", "OMNIBUS_EXECUTOR_CONTEXT"}


def declarations(models: Values) -> dict[ExecutorKind, DesiredExecutors]:
    """Return the executors that a planner would want."""
    known = msgspec.convert(models, declarations_file.Declarations)
    return desired_executors(Plan(1, 0, 0.0, declarations_file.build_static_plans(known.models)))
