"""Rejection of bad values before rendering. The message names value and reason."""

from typing import Any

import pytest

from tests.unit.chart.shapes import DECLARED, GROUP, Renders, make_values


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"gatway": {}}, "additional properties 'gatway' not allowed"),
        ({"gateway": {"replicas": 0}}, "/gateway/replicas.*minimum: got 0, want 1"),
        ({"gateway": {"replicas": "two"}}, "/gateway/replicas.*got string, want integer"),
        ({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy.*one of 'Always', 'IfNotPresent', 'Never'"),
        ({"gateway": {"settings": {"gateway": {"dedline": 5}}}}, "/gateway/settings/gateway.*'dedline' not allowed"),
        ({"settings": {"bus": {"url": "nats://x"}}}, "/settings/bus.*'url' not allowed"),
        ({"checkpoints": {"size": "100 GB"}}, "/checkpoints/size.*does not match pattern"),
        ({"executors": {"scaling": "magic"}}, "/executors/scaling.*'planner', 'keda', 'hpa', 'none'"),
        ({"executors": {"options": {"L": {"service": "llm"}}}}, "/executors/options.*additional properties 'L' not allowed"),
        ({"executors": {"options": {"a/L": {}}}}, "missing property 'service'"),
        ({"executors": {"options": {"a/L": {"service": "llm", "group": {"size": 1, "command": ["a"]}}}}}, "size.*minimum"),
        ({"executors": {"pod": {"hostNetwork": True}}}, "/executors/pod/hostNetwork"),
        ({"executors": {"pod": {"securityContext": {}}}}, "/executors/pod/securityContext"),
        ({"models": {"models": {"a": {"family": "qwen2_5_vl"}}}}, "/models/models/a.*missing property 'checkpoint'"),
        ({"models": {"models": {"a": {"family": "f", "checkpoint": "c", "opitons": {}}}}}, "'opitons' not allowed"),
        ({"nats": {"url": "nats://user:word@bus:4222"}}, "/nats/url.*does not match pattern"),
        ({"valkey": {"url": "http://store"}}, "/valkey/url.*does not match pattern"),
        ({"fullnameOverride": "Big"}, "/fullnameOverride.*does not match pattern"),
        ({"placement": {"oneNode": "maybe"}}, "/placement/oneNode.*one of 'required', 'preferred', 'off', true, false"),
        ({"sidecar": {"settings": {"sidecar": {"host": "0.0.0.0"}}}}, "/sidecar/settings/sidecar.*'host' not allowed"),
        ({"settings": {"sidecar": {"secret_file": ""}}}, "/settings/sidecar.*'secret_file' not allowed"),
        ({"env": {"A-B": "x"}}, "/env.*'A-B' not allowed"),
    ],
    ids=lambda each: "" if isinstance(each, str) else None,
)  # fmt: skip
def test_a_value_of_a_wrong_shape_is_refused_by_its_place(render_chart: Renders, wrong: dict[str, Any], reason: str):
    assert_refused(render_chart, wrong, reason)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (make_values(gateway__media__kind="emptyDir"), "gateway.media.kind=emptyDir is for one gateway"),
        (make_values(placement__oneNode=False), "set gateway.media.accessMode=ReadWriteMany"),
        (make_values(placement__oneNode="off"), "set gateway.media.accessMode=ReadWriteMany"),
        (make_values(placement__oneNode="off", gateway__replicas=1), "set checkpoints.accessMode=ReadOnlyMany or ReadWriteMany"),
        (make_values(placement__oneNode="required", sidecar__tls__secret="nodes"), "set placement.oneNode=preferred or off"),
        (make_values(placement__oneNode="required", sidecar__env={"OMNIBUS_SIDECAR_HOST": "::"}), "HOST is set by the chart"),
        (make_values(sidecar__env={"OMNIBUS_SIDECAR_SECRET_FILE": ""}), "SECRET_FILE is set by the chart"),
        (make_values(env={"OMNIBUS_SIDECAR_TLS_CA": ""}), "TLS_CA is set by the chart"),
        (make_values(nats__enabled=False), "nats.enabled=false needs nats.url"),
        (make_values(valkey__url="redis://store:6379/0"), "valkey.url is for a server of your own"),
        (make_values(nats__fileStore="1GB"), "nats.fileStore=1GB has no room for its streams, 1409286144 bytes"),
        (make_values(nats__fileStore="1GB", settings__bus__record_bytes=1 << 30), "nats.fileStore=1GB has no room"),
        (make_values(nats__fileStore="1024MB", gateway__settings__bus__dead_bytes=1), "nats.fileStore=1024MB has no room"),
        (make_values(checkpoints__kind="hostPath"), "needs checkpoints.hostPath"),
        (make_values(checkpoints__tiny=["qwen2_5_vl"]), "set checkpoints.kind=emptyDir"),
        (make_values(checkpoints={"kind": "none", "download": True}), "needs a place for what is downloaded"),
        (make_values(models={**DECLARED, "existingConfigMap": "mine"}), "both declare models"),
        (make_values(executors__scaling="hpa", models__existingConfigMap="mine"), "makes executors of models.models"),
        (
            make_values(executors__scaling="none", models__models={"a": {"family": "f", "checkpoint": "c", "planned": {}}}),
            "only executors.scaling=planner runs planned models",
        ),
        (
            make_values(executors__scaling="none", models__models={"a": {"family": "f", "checkpoint": "c", "options": {"L": {}}}}),
            "needs components and service of models.models.a.options.L",
        ),
        (make_values(executors__scaling="keda", models=DECLARED), "needs executors.keda.prometheus"),
    ],
)  # fmt: skip
def test_values_that_contradict_each_other_are_refused_with_a_way_out(
    render_chart: Renders, wrong: dict[str, Any], reason: str
):
    assert_refused(render_chart, wrong, reason)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (
            make_values(models=DECLARED, executors__options=GROUP),
            "needs LeaderWorkerSet, which this cluster does not have",
        ),
        (make_values(metrics__serviceMonitor=True), "needs the Prometheus operator, which this cluster does not have"),
    ],
)
def test_what_this_cluster_cannot_do_is_refused(render_bare: Renders, wrong: dict[str, Any], reason: str):
    assert_refused(render_bare, wrong, reason)


def assert_refused(render: Renders, wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(Exception, match=f"(?s){reason}") as caught:
        render(wrong)
    assert type(caught.value).__name__ == "InstallError"
