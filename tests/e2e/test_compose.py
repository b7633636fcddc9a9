"""The compose files in a real Docker engine.

Containers are built, started, queried, damaged, secured, monitored and stopped.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from omnibus import api_key
from tests.e2e.compose import stack as stacks
from tests.e2e.compose.stack import (
    FILES,
    HERE,
    PASSWORDS,
    TOKEN,
    ComposeStack,
    make_picture,
    seen_and_heard,
    short_body,
)
from tests.e2e.docker_engine import DockerEngine

pytestmark = [pytest.mark.docker, pytest.mark.timeout(2400)]

BASE = yaml.safe_load((FILES / "compose.yaml").read_text())["services"]
OURS = sorted(name for name, spec in BASE.items() if "build" in spec and name != "models")
STAY = sorted(BASE.keys() - {"models"})
#: User, privileges, and the results of writing to the root and to /tmp.
LOOK = "id -u; grep -E '^(CapEff|NoNewPrivs):' /proc/1/status; touch /app/written; touch /tmp/written && echo tmp"
STRANGER = (HERE / "stranger.py").read_text()


@pytest.fixture(scope="module")
def stack(docker_engine: DockerEngine) -> Iterator[ComposeStack]:
    """``compose.yaml`` alone, as a newcomer starts it."""
    with stacks.start_stack(docker_engine) as stack:
        yield stack


@pytest.fixture(scope="module")
def guarded_stack(stack: ComposeStack) -> ComposeStack:
    """The same project with the layers for users, keys and monitoring.

    Containers restart, and volumes stay.
    """
    stack.files = (*stacks.PLAIN, *stacks.LAYERS)
    stack.env.update(stacks.guard_variables())
    stack.up(*BASE, "prometheus", "jaeger")
    stack.wait_ready()
    return stack


@pytest.fixture(scope="module")
def key(guarded_stack: ComposeStack) -> str:
    """A client's key, created as in docs/security.md, and active."""
    output = guarded_stack.compose("exec", "-T", "gateway", "python", "-m", "omnibus.cli", "keys", "create", "someone")
    new_key = next(word for word in output.split() if word.startswith(api_key.PREFIX))
    guarded_stack.wait_for(
        lambda: guarded_stack.get("/v1/models", new_key).status == 200, "gateway that knows the key", within=30
    )
    return new_key


# As a newcomer starts it


def test_containers_answer_a_picture_and_a_sound_in_text_and_speech(stack: ComposeStack) -> None:
    answer = stack.ask(seen_and_heard())

    assert answer.status == 200, f"{answer.text}\n{stack.logs()}"
    message, usage = answer.body["choices"][0]["message"], answer.body["usage"]["prompt_tokens_details"]
    assert message["content"]
    assert len(message["audio"]["data"]) > 1000
    assert usage["image_tokens"] > 0
    assert usage["audio_tokens"] > 0


def test_containers_serve_a_second_model(stack: ComposeStack) -> None:
    answer = stack.ask(short_body())

    assert answer.status == 200, f"{answer.text}\n{stack.logs()}"
    assert answer.body["usage"]["completion_tokens"] <= 5


def test_every_container_is_healthy_and_the_models_were_built(stack: ComposeStack) -> None:
    stack.wait_for(lambda: set(read_health(stack).values()) == {"healthy"}, "health of all containers", within=90)

    assert sorted(read_health(stack)) == STAY
    models = stack.containers()["models"]["State"]
    assert (models["Status"], models["ExitCode"]) == ("exited", 0)


def read_health(stack: ComposeStack) -> dict[str, str]:
    """Reports of the health checks of running containers."""
    states = {name: each["State"] for name, each in stack.containers().items()}
    return {name: state.get("Health", {}).get("Status", "none") for name, state in states.items() if state["Running"]}


@pytest.mark.parametrize("service", OURS)
def test_a_service_runs_as_nobody_special_on_a_root_that_it_cannot_write(stack: ComposeStack, service: str) -> None:
    uid, *privileges, write_error, file = stack.shell(service, LOOK).splitlines()

    assert uid == "10001"
    assert [line.split() for line in privileges] == [["CapEff:", "0" * 16], ["NoNewPrivs:", "1"]]
    assert "Read-only file system" in write_error
    assert file == "tmp"


@pytest.mark.parametrize(("service", "user"), [("nats", "0"), ("valkey", "999")])
def test_a_server_writes_to_its_volume_alone_and_has_no_privileges(
    stack: ComposeStack, service: str, user: str
) -> None:
    look = "id -u; grep -E '^(CapEff|NoNewPrivs):' /proc/1/status; touch /usr/written; find /data -mindepth 1 | head -1"
    uid, *privileges, write_error, file = stack.shell(service, look).splitlines()

    assert uid == user
    assert [line.split() for line in privileges] == [["CapEff:", "0" * 16], ["NoNewPrivs:", "1"]]
    assert "Read-only file system" in write_error
    assert file.startswith("/data/")


def test_limits_of_the_file_are_in_force(stack: ComposeStack) -> None:
    limits = {name: each["HostConfig"] for name, each in stack.containers().items()}

    assert {name: (host["NanoCpus"], host["Memory"], host["PidsLimit"]) for name, host in limits.items()} == {
        name: (int(spec["cpus"] * 1e9), parse_size(spec["mem_limit"]), spec["pids_limit"])
        for name, spec in BASE.items()
    }


@pytest.mark.parametrize("service", OURS)
def test_the_kernel_knows_a_services_limit_of_memory(stack: ComposeStack, service: str) -> None:
    lines = stack.shell(service, "cd /sys/fs/cgroup && cat memory.max memory/memory.limit_in_bytes").splitlines()

    assert [int(line) for line in lines if line.isdigit()] == [parse_size(BASE[service]["mem_limit"])]


def parse_size(text: str) -> int:
    return int(text[:-1]) << {"m": 20, "g": 30}[text[-1]]


def test_nothing_but_the_gateway_is_published_and_that_on_loopback(stack: ComposeStack) -> None:
    bound = {name: each["HostConfig"]["PortBindings"] or {} for name, each in stack.containers().items()}

    assert {name for name, ports in bound.items() if ports} == {"gateway"}
    assert [at["HostIp"] for ports in bound["gateway"].values() for at in ports] == ["127.0.0.1"]


def test_nobody_is_asked_for_a_key_and_control_routes_are_closed(stack: ComposeStack) -> None:
    assert stack.get("/v1/models").status == 200
    assert stack.get("/v1/invocations").status == 403


# Hurt


@pytest.mark.parametrize("service", ["llm-vl", "sidecar"])
def test_what_dies_is_started_again_and_requests_are_answered(stack: ComposeStack, service: str) -> None:
    stack.shell(service, "kill -9 -1")  # everything but the first process, which ends for want of a child

    def is_restarted() -> bool:
        container = stack.containers()[service]
        return container["RestartCount"] > 0 and container["State"]["Health"]["Status"] == "healthy"

    stack.wait_for(is_restarted, f"healthy {service}")

    assert stack.wait_for_answer(short_body())["choices"]
    assert stack.wait_for_answer(seen_and_heard())["choices"][0]["message"]["audio"]["data"]


def test_requests_are_answered_after_the_bus_was_restarted(stack: ComposeStack) -> None:
    stack.compose("restart", "nats")

    assert stack.wait_for_answer(seen_and_heard())["choices"][0]["message"]["audio"]["data"]


# Closed, and watched


def test_with_users_and_keys_a_picture_is_answered(guarded_stack: ComposeStack, key: str) -> None:
    answer = guarded_stack.ask(seen_and_heard(), key)

    assert answer.status == 200, f"{answer.text}\n{guarded_stack.logs()}"
    assert answer.body["choices"][0]["message"]["audio"]["data"]
    assert answer.body["usage"]["prompt_tokens_details"]["image_tokens"] > 0


def test_without_a_key_nobody_is_answered_and_without_the_token_nobody_steers(
    guarded_stack: ComposeStack, key: str
) -> None:
    assert guarded_stack.ask(short_body()).status == 401
    assert guarded_stack.ask(short_body(), "guessed").status == 401
    assert guarded_stack.get("/v1/invocations", key).status == 401
    assert guarded_stack.get("/v1/invocations", TOKEN).status == 200


def test_a_key_outlives_the_store(guarded_stack: ComposeStack, key: str) -> None:
    guarded_stack.compose("restart", "valkey")

    guarded_stack.wait_for(
        lambda: "someone" in guarded_stack.shell("gateway", "python -m omnibus.cli keys list"), "key", within=30
    )
    assert guarded_stack.ask(short_body(), key).status == 200


@pytest.mark.parametrize(
    ("user", "password"),
    [("", ""), ("encoder", "guessed"), ("root", PASSWORDS["gateway"])],
    ids=["nobody", "guess", "root"],
)
def test_the_bus_lets_no_stranger_in(guarded_stack: ComposeStack, user: str, password: str) -> None:
    assert "Authorization Violation" in as_somebody(guarded_stack, user, password, "omnibus.edge.nobody")


@pytest.mark.parametrize(
    ("user", "subject", "publishes", "listens"),
    [
        ("encoder", "omnibus.edge.nobody", True, True),
        ("encoder", "omnibus.task.nobody.nowhere", False, True),
        ("encoder", "omnibus.replay", False, False),
        ("encoder", "omnibus.inv.chat.made-up", False, False),
        ("planner", "omnibus.edge.nobody", False, False),
    ],
)
def test_a_user_says_and_hears_its_own_alone(
    guarded_stack: ComposeStack, user: str, subject: str, publishes: bool, listens: bool
) -> None:
    output = as_somebody(guarded_stack, user, PASSWORDS[user], subject).lower()

    assert "not let in" not in output
    assert (f'permissions violation for publish to "{subject}"' in output) != publishes
    assert (f'permissions violation for subscription to "{subject}"' in output) != listens


#: Prints the store's answer to a client without its password, or that it is unreachable.
KNOCK = """
import socket
try:
    with socket.create_connection(("valkey", 6379), 5) as store:
        store.sendall(b"GET omnibus:plan:epoch\\r\\n")
        print(store.recv(100).decode())
except OSError:
    print("not reached")
"""


@pytest.mark.parametrize(
    ("service", "expected_message"), [("encoder", "not reached"), ("llm", "not reached"), ("gateway", "NOAUTH")]
)
def test_executors_do_not_reach_the_store_and_it_asks_for_a_password(
    guarded_stack: ComposeStack, service: str, expected_message: str
) -> None:
    assert expected_message in guarded_stack.exec(service, "python", "-c", KNOCK)


def as_somebody(stack: ComposeStack, *who: str) -> str:
    """Subjects that the bus denies user ``who`` in another container."""
    return stack.exec("encoder", "python", "-c", STRANGER, *who)


def test_prometheus_asks_every_service(guarded_stack: ComposeStack) -> None:
    def are_up() -> bool:
        targets = ask_prometheus(guarded_stack, "targets?state=active").get("activeTargets", [])
        return sorted((each["labels"]["service"], each["health"]) for each in targets) == [(one, "up") for one in OURS]

    guarded_stack.wait_for(are_up, "answers of all services to Prometheus", within=90)


def test_prometheus_works_the_alerts_out(guarded_stack: ComposeStack) -> None:
    alerts = yaml.safe_load((FILES / "../observability/alerts.yml").read_text())["groups"]

    def read_rules() -> list[dict[str, Any]]:
        known_rules = [
            rule for group in ask_prometheus(guarded_stack, "rules").get("groups", []) for rule in group["rules"]
        ]
        return known_rules if known_rules and all(rule["health"] != "unknown" for rule in known_rules) else []

    alert_rules = guarded_stack.wait_for(read_rules, "rules that were worked out", within=60)
    assert {rule["name"]: rule["health"] for rule in alert_rules} == {
        rule["alert"]: "ok" for group in alerts for rule in group["rules"]
    }


def test_prometheus_counts_a_request(guarded_stack: ComposeStack, key: str) -> None:
    assert guarded_stack.ask(seen_and_heard(), key).status == 200

    query = quote('sum by (service) (omnibus_requests_total{code="ok"}) > 0')
    series = guarded_stack.wait_for(
        lambda: ask_prometheus(guarded_stack, f"query?query={query}").get("result"),
        "request that Prometheus knows of",
        60,
    )
    assert [each["metric"] for each in series] == [{"service": "gateway"}]


def ask_prometheus(stack: ComposeStack, query: str) -> Any:
    """Data of Prometheus' answer, or empty."""
    answer = stack.get(f"/api/v1/{query}", base=f"http://127.0.0.1:{stack.prometheus}")
    return answer.body["data"] if answer.status == 200 else {}


def test_a_request_leaves_its_trace(guarded_stack: ComposeStack, key: str) -> None:
    image = {"role": "user", "content": [make_picture(), {"type": "text", "text": "What is this?"}]}
    assert guarded_stack.ask({**short_body(), "model": "qwen2.5-omni-tiny", "messages": [image]}, key).status == 200

    networks = {name: each["NetworkSettings"]["Networks"].values() for name, each in guarded_stack.containers().items()}
    addresses = [{at["IPAddress"] for at in networks[name]} for name in ("gateway", "encoder", "llm")]
    # A gateway is in the store's network as well, and sends its spans from one address.
    guarded_stack.wait_for(
        lambda: all(each & find_senders(guarded_stack) for each in addresses), "spans of a request", within=60
    )


def find_senders(stack: ComposeStack) -> set[str]:
    """Addresses that sent spans."""
    return set(re.findall(r"spans of (\S+) at /v1/traces", stack.logs("jaeger", last=1000)))


# Taken down


def test_what_is_taken_down_leaves_its_volumes_alone(stack: ComposeStack) -> None:
    before = set(stack.list_ids("volume", "ls"))

    stack.down()

    assert before
    assert set(stack.list_ids("volume", "ls")) == before
    assert stack.list_ids("ps", "-a") == []
    assert stack.list_ids("network", "ls") == []
