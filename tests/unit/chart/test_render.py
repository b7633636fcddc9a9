"""Each version of Kubernetes accepts the chart's objects for any values."""

import json
from typing import Any

import msgspec
import pytest

from omnibus import metrics, settings
from omnibus.bus import permissions
from omnibus.cluster.presence import DesiredExecutors, ExecutorKind, desired_executors
from omnibus.executor.settings import ExecutorSettings
from omnibus.plan import Plan
from omnibus_planner.declared import declarations_file
from tests.kube import schemas
from tests.kube import values as known
from tests.kube.helm import Values
from tests.unit.chart.shapes import (
    DECLARED,
    SHAPES,
    Renders,
    iterate_pods,
    list_objects,
    make_values,
    read_env,
    read_templates,
    select_kind,
)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_version_of_kubernetes_takes_all_objects(render_chart: Renders, shape: str):
    objects = list_objects(render_chart(SHAPES[shape]))

    assert [
        fault for version in schemas.VERSIONS for each in objects for fault in schemas.find_faults(each, version)
    ] == []


@pytest.mark.parametrize("version", schemas.VERSIONS)
def test_a_field_that_a_version_does_not_know_is_found(version: str):
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "a"}]}}
    wrong = {**pod, "spec": {"containers": [{"name": "a", "privilegd": True}]}}
    group = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "a"}}
    inner = {"leaderWorkerTemplate": {"workerTemplate": {"spec": wrong["spec"]}}}

    assert schemas.find_faults(pod, version) == []
    assert "privilegd" in str(schemas.find_faults(wrong, version))
    assert "privilegd" in str(schemas.find_faults({**group, "spec": inner}, version))


@pytest.mark.parametrize("shape", SHAPES)
def test_names_are_unique_and_labels_lead_to_pods(render_chart: Renders, shape: str):
    objects = render_chart(SHAPES[shape])

    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)
    labels = [pod["metadata"]["labels"] for _, pod in iterate_pods(objects)]
    for each in objects:
        selector = each["spec"].get("selector") or each["spec"].get("podSelector") if each.get("spec") else None
        selector = (
            selector.get("matchLabels", selector)
            if each["kind"] not in ("ServiceMonitor", "PersistentVolumeClaim") and selector
            else None
        )
        assert selector is None or any(selector.items() <= pod_labels.items() for pod_labels in labels), each[
            "metadata"
        ]["name"]


def test_prometheus_finds_every_pod_of_ours(render_chart: Renders):
    objects = render_chart(SHAPES["everything"])

    (monitor,) = select_kind(objects, "ServiceMonitor").values()
    selector = monitor["spec"]["selector"]["matchLabels"].items()
    (service,) = [
        each for each in select_kind(objects, "Service").values() if selector <= each["metadata"]["labels"].items()
    ]
    parts = {
        part
        for part, pod in iterate_pods(objects)
        if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    }
    assert parts == {"gateway", "planner", "sidecar", "encoder", "llm", "generator"}
    assert service["spec"]["ports"][0]["name"] == monitor["spec"]["endpoints"][0]["port"]


@pytest.mark.parametrize("shape", SHAPES)
def test_services_are_told_only_what_they_know(render_chart: Renders, shape: str):
    objects = render_chart(SHAPES[shape])

    fields = {
        f"OMNIBUS_{area.area}_{field}".upper()
        for area in settings.Settings.__subclasses__()
        for field in area.__struct_fields__
    }
    variables = {name for _, pod in iterate_pods(objects) for name in told(pod) if name.startswith("OMNIBUS_")}
    variables -= {
        permissions.password_variable(user) for user in permissions.permissions_by_user()
    }  # for the bundled server
    assert variables - fields == set()
    assert "OMNIBUS_BUS_URL" in variables


def told(pod: dict) -> dict:
    return read_env(pod) if pod["spec"]["containers"][0].get("env") else {}


def test_variables_are_told_once_and_refer_to_those_before_them(render_chart: Renders):
    for part, pod in iterate_pods(render_chart(SHAPES["everything"])):
        names = [each["name"] for each in pod["spec"]["containers"][0]["env"]]
        assert len(set(names)) == len(names), part
        for source, user in (("NODE", "OMNIBUS_SIDECAR_NODE"), ("STORE_PASSWORD", "OMNIBUS_STORE_URL")):
            assert (
                user not in names
                or f"$({source})" not in read_env(pod)[user]
                or names.index(source) < names.index(user)
            )


def test_settings_reach_the_services_and_the_nearest_wins(render_chart: Renders):
    chart_values = make_values(
        settings={"bus": {"record_bytes": 5 << 30}, "service": {"log_level": "DEBUG"}},
        gateway__settings__gateway={"deadline": 2.5, "allow_http": True},
        executors={"settings": {"executor": {"batch": 8}}, "llm": {"settings": {"executor": {"batch": 32}}}},
        env={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://otel:4318"},
    )

    environments = {part: read_env(pod) for part, pod in iterate_pods(render_chart(chart_values))}
    assert environments["planner"]["OMNIBUS_BUS_RECORD_BYTES"] == "5368709120"
    assert environments["sidecar"]["OMNIBUS_SERVICE_LOG_LEVEL"] == "DEBUG"
    assert environments["gateway"]["OMNIBUS_GATEWAY_DEADLINE"] == "2.5"
    assert environments["gateway"]["OMNIBUS_GATEWAY_ALLOW_HTTP"] == "true"
    assert environments["gateway"]["OMNIBUS_GATEWAY_RECORD"] == "digest"
    assert [environments[part]["OMNIBUS_EXECUTOR_BATCH"] for part in ("encoder", "llm")] == ["8", "32"]
    assert environments["generator"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://otel:4318"
    for part, area in {"gateway": settings.GatewaySettings, "encoder": ExecutorSettings}.items():
        settings.read_settings(
            area, {name: value for name, value in environments[part].items() if isinstance(value, str)}
        )


def test_a_gateway_knows_the_name_of_its_ingress_unless_names_are_set(render_chart: Renders):
    ingress = {"host": "api.example.com"}
    own = {"ingress": ingress, "settings": {"gateway": {"allowed_hosts": "a.test"}}}

    names = [
        read_env(
            select_kind(render_chart(make_values("values-cpu.yaml", gateway=gateway)), "Deployment")["om-gateway"][
                "spec"
            ]["template"]
        ).get("OMNIBUS_GATEWAY_ALLOWED_HOSTS")
        for gateway in ({}, {"ingress": ingress}, own)
    ]

    assert names == [None, "api.example.com", "a.test"]


def test_the_schema_of_values_knows_the_settings_and_models_of_the_code():
    definitions = json.loads(known.SCHEMA.read_text())["$defs"]

    assert {name: definitions[name] for name in known.make_definitions()} == known.make_definitions(), (
        "run python -m tests.kube.values"
    )


def test_the_planner_runs_executors_unless_something_else_scales_them(render_chart: Renders):
    planner_objects, fixed_objects = render_chart(SHAPES["gpu"]), render_chart(SHAPES["hpa"])

    assert sorted(read_templates(planner_objects)) == ["encoder", "generator", "llm"]
    assert "om-planner" in select_kind(planner_objects, "Role")
    assert (
        read_env(select_kind(planner_objects, "Deployment")["om-planner"]["spec"]["template"])[
            "OMNIBUS_PLANNER_RECONCILE"
        ]
        == "kubernetes"
    )
    assert select_kind(fixed_objects, "Role") == {}
    assert "OMNIBUS_PLANNER_RECONCILE" not in read_env(
        select_kind(fixed_objects, "Deployment")["om-planner"]["spec"]["template"]
    )


@pytest.mark.parametrize(("shape", "kind"), [("keda", "ScaledObject"), ("hpa", "HorizontalPodAutoscaler")])
def test_each_option_is_a_workload_that_its_scaler_finds(render_chart: Renders, shape: str, kind: str):
    objects = render_chart(SHAPES[shape])

    scalers = select_kind(objects, kind)
    for name, scaler in scalers.items():
        deployment = select_kind(objects, "Deployment")[scaler["spec"]["scaleTargetRef"]["name"]]
        assert "replicas" not in deployment["spec"]
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert labels["omnibus/executor"] == name
    options = {
        read_env(select_kind(objects, "Deployment")[name]["spec"]["template"])["OMNIBUS_EXECUTOR_OPTION"]
        for name in scalers
    }
    assert options == {"E", "L"}


def test_keda_asks_for_a_metric_that_executors_have(render_chart: Renders):
    (query, *_) = [
        each["spec"]["triggers"][0]["metadata"]["query"]
        for each in select_kind(render_chart(SHAPES["keda"]), "ScaledObject").values()
    ]

    name = query.removeprefix("sum(").partition("{")[0]
    assert name in {family.name for family in metrics.REGISTRY.collect()}
    assert 'omnibus_executor="om-qwen-' in query


def test_without_keda_the_load_of_processors_scales(render_bare: Renders):
    objects = render_bare(SHAPES["keda"])

    assert select_kind(objects, "ScaledObject") == {}
    assert len(select_kind(objects, "HorizontalPodAutoscaler")) == 2


def test_options_may_differ_from_their_service(render_chart: Renders):
    chart_values = make_values(
        executors={
            "llm": {"pod": {"nodeSelector": {"pool": "a"}}},
            "options": {"q/L": {"service": "llm", "pod": {"nodeSelector": {"gpu": "{gpu}"}}, "env": {"A": "1"}}},
        },
    )

    executor_templates = read_templates(render_chart(chart_values))
    assert executor_templates["llm"]["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "a"}
    assert executor_templates["q/L"]["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "a", "gpu": "{gpu}"}
    assert read_env(executor_templates["q/L"]["spec"]["template"])["A"] == "1"


def test_options_that_the_planner_does_not_run_are_told_the_same(render_chart: Renders):
    deployments = select_kind(
        render_chart(make_values("values-gpu.yaml", models=DECLARED, executors__scaling="none")), "Deployment"
    ).values()

    deployments_by_option = {
        read_env(each["spec"]["template"]).get("OMNIBUS_EXECUTOR_OPTION"): each for each in deployments
    }
    for kind, executors in planner_executors(DECLARED).items():
        variables = {name: value for name, value in executors.env.items() if name not in UNSAID}
        assert read_env(deployments_by_option[kind.option]["spec"]["template"]).items() >= variables.items()
        assert deployments_by_option[kind.option]["spec"]["replicas"] == executors.replicas
    limits = deployments_by_option["L"]["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    variables = read_env(deployments_by_option["L"]["spec"]["template"])
    assert limits == {"memory": "64Gi", "nvidia.com/gpu": "2"}
    assert (variables["OMNIBUS_EXECUTOR_DEVICE"], variables["OMNIBUS_VLLM_TENSOR_PARALLEL"]) == ("cuda", "2")


def test_the_engines_settings_of_an_option_reach_its_executors_without_the_planner(render_chart: Renders):
    model: Any = DECLARED["models"]["qwen"]
    option = {**model["options"]["L"], "gpus": 4, "vllm": {"pipeline_parallel": 2, "quantization": "fp8"}}
    declared_models = {"models": {"q": {**model, "options": {**model["options"], "L": option}}}}

    deployments = select_kind(
        render_chart(make_values("values-gpu.yaml", models=declared_models, executors__scaling="none")), "Deployment"
    ).values()

    environments = {
        read_env(each["spec"]["template"]).get("OMNIBUS_EXECUTOR_OPTION"): read_env(each["spec"]["template"])
        for each in deployments
    }
    engine_settings = {"PIPELINE_PARALLEL": "2", "QUANTIZATION": "fp8", "TENSOR_PARALLEL": "2"}
    assert (
        environments["L"].items() >= {f"OMNIBUS_VLLM_{name}": value for name, value in engine_settings.items()}.items()
    )


#: Values that an executor derives from its family, and the origin of plans.
UNSAID = {"OMNIBUS_EXECUTOR_ORIGIN", "OMNIBUS_EXECUTOR_TASKS", "OMNIBUS_EXECUTOR_ENGINE", "OMNIBUS_EXECUTOR_CONTEXT"}


def planner_executors(models: Values) -> dict[ExecutorKind, DesiredExecutors]:
    """Return the executors that a planner would want."""
    declared_models = msgspec.convert(models, declarations_file.Declarations)
    return desired_executors(Plan(1, 0, 0.0, declarations_file.build_static_plans(declared_models.models)))
