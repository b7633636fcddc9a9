"""Settings are read only from ``OMNIBUS_<AREA>_<FIELD>``."""

import socket
from typing import Any

import pytest

from omnibus.errors import BadRequest
from omnibus.executor.settings import ExecutorSettings
from omnibus.reference.settings import check_environment
from omnibus.settings import (
    BusSettings,
    GatewaySettings,
    PlannerSettings,
    ServiceSettings,
    Settings,
    SidecarSettings,
    StoreSettings,
    read_settings,
)
from omnibus.urls import redact_url, split_urls

AREAS = [
    BusSettings, StoreSettings, SidecarSettings, GatewaySettings, PlannerSettings, ExecutorSettings, ServiceSettings,
]  # fmt: skip


@pytest.mark.parametrize("kind", AREAS)
def test_an_empty_environment_gives_the_defaults(kind: type[Settings]):
    assert read_settings(kind, {}) == kind()


def test_every_area_has_a_name_of_its_own():
    assert len({kind.area for kind in AREAS}) == len(AREAS)


@pytest.mark.parametrize(
    ("kind", "variable", "text", "field", "value"),
    [
        (BusSettings, "OMNIBUS_BUS_URL", "nats://there:1", "url", "nats://there:1"),
        (BusSettings, "OMNIBUS_BUS_MAX_PAYLOAD", "1024", "max_payload", 1024),
        (BusSettings, "OMNIBUS_BUS_RECORD_SECONDS", "60", "record_seconds", 60.0),
        (GatewaySettings, "OMNIBUS_GATEWAY_ALLOW_HTTP", "true", "allow_http", True),
        (GatewaySettings, "OMNIBUS_GATEWAY_ALLOW_HTTP", "0", "allow_http", False),
        (GatewaySettings, "OMNIBUS_GATEWAY_DEADLINE", "2.5", "deadline", 2.5),
        (ExecutorSettings, "OMNIBUS_EXECUTOR_ID", "17", "id", "17"),
        (ServiceSettings, "OMNIBUS_SERVICE_METRICS_PORT", "9000", "metrics_port", 9000),
        (ServiceSettings, "OMNIBUS_SERVICE_METRICS_DIR", "/t", "metrics_dir", "/t"),
    ],
)
def test_a_variable_sets_its_field(kind: type[Settings], variable: str, text: str, field: str, value: Any):
    area_settings = read_settings(kind, {variable: text, "OMNIBUS_OTHER_URL": "x", "URL": "y"})

    assert getattr(area_settings, field) == value
    assert type(getattr(area_settings, field)) is type(value)


@pytest.mark.parametrize(
    ("kind", "variable", "text"),
    [
        (GatewaySettings, "OMNIBUS_GATEWAY_PORT", "eighty"),
        (GatewaySettings, "OMNIBUS_GATEWAY_ALLOW_PRIVATE", "perhaps"),
        (BusSettings, "OMNIBUS_BUS_CONNECT_TIMEOUT", ""),
        (ExecutorSettings, "OMNIBUS_EXECUTOR_CREDITS", "1.5"),
    ],
)
def test_a_bad_value_names_its_variable(kind: type[Settings], variable: str, text: str):
    with pytest.raises(BadRequest, match=variable):
        read_settings(kind, {variable: text})


def test_the_environment_of_the_process_is_read_by_default(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMNIBUS_STORE_PREFIX", "blue")

    assert read_settings(StoreSettings).prefix == "blue"


def test_settings_do_not_change():
    with pytest.raises(AttributeError):
        BusSettings().url = "elsewhere"  # type: ignore[misc]


def test_a_node_without_a_name_is_called_by_its_host():
    assert SidecarSettings().node_name == socket.gethostname()
    assert SidecarSettings(node="n7").node_name == "n7"


def test_a_printed_url_holds_no_password():
    assert redact_url("redis://user:secret@host:6379/0") == "redis://host:6379/0"
    assert redact_url("nats://127.0.0.1:4222") == "nats://127.0.0.1:4222"
    assert redact_url("nats://u:a@one:1, nats://u:b@two:2") == "nats://one:1,nats://two:2"
    assert redact_url("redis+sentinel://:pa,ss@one:1,two:2/set/0") == "redis+sentinel://one:1,two:2/set/0"


def test_a_list_of_urls_is_split_where_one_begins():
    assert split_urls("nats://u:p,q@one:1, tls://two:2,nats://three:3") == [
        "nats://u:p,q@one:1",
        "tls://two:2",
        "nats://three:3",
    ]
    assert split_urls("nats://one:1") == ["nats://one:1"]


@pytest.mark.parametrize(
    ("kind", "environ", "message"),
    [
        (GatewaySettings, {"OMNIBUS_GATEWAY_KEYZ": "true"}, "OMNIBUS_GATEWAY_KEYZ is not a setting: did you mean OMNIBUS_GATEWAY_KEYS?"),
        (BusSettings, {"OMNIBUS_BUS_QQQQQQQQQQQQ": "1"}, "`omnibus settings` lists all of them"),
        (GatewaySettings, {"OMNIBUS_GATEWAY_DEADLINE": "abc"}, "OMNIBUS_GATEWAY_DEADLINE='abc': a number is expected"),
        (GatewaySettings, {"OMNIBUS_GATEWAY_KEYS": "maybe"}, "`true` or `false` is expected"),
        (GatewaySettings, {"OMNIBUS_GATEWAY_PORT": "1.5"}, "a whole number is expected"),
        (ServiceSettings, {"OMNIBUS_SERVICE_LOG_LEVEL": "LOUD"}, "`DEBUG` or `INFO` or `WARNING` or `ERROR` is expected"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_with_what_is_allowed(kind: type[Settings], environ: dict[str, str], message: str):
    with pytest.raises(BadRequest) as caught:
        read_settings(kind, environ)

    assert message in caught.value.message


def test_what_kubernetes_and_compose_set_is_no_mistake():
    environ = {
        "OMNIBUS_GATEWAY_SERVICE_HOST": "10.0.0.1", "OMNIBUS_GATEWAY_SERVICE_PORT_HTTP": "8000",
        "OMNIBUS_GATEWAY_PORT_8000_TCP_ADDR": "10.0.0.1", "OMNIBUS_STORE_PASSWORD": "x",
    }  # fmt: skip

    assert read_settings(GatewaySettings, environ) == GatewaySettings()
    assert read_settings(StoreSettings, environ) == StoreSettings()


@pytest.mark.parametrize("name", ["OMNIBUS_GATEWEY_KEYS", "OMNIBUS_RUNN"])
def test_areas_that_nobody_reads_are_checked_as_well(name: str):
    with pytest.raises(BadRequest, match=f"{name} is not a setting: did you mean"):
        check_environment({name: "true", "OMNIBUS_NATS_GATEWAY_PASSWORD": "x", "OMNIBUS_TEST_NODES": "2"})

    check_environment({"OMNIBUS_NATS_GATEWAY_PASSWORD": "x", "OMNIBUS_TEST_NODES": "2", "OMNIBUS_GATEWAY_KEYS": "1"})
