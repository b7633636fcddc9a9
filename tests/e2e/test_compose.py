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
from tests.e2e.compose.stack import FILES, HERE, PASSWORDS, TOKEN, Stack, picture, seen_and_heard, short
from tests.e2e.docker_engine import Engine

pytestmark = [pytest.mark.docker, pytest.mark.timeout(2400)]

BASE = yaml.safe_load((FILES / "compose.yaml").read_text())["services"]
OURS = sorted(name for name, spec in BASE.items() if "build" in spec and name != "models")
STAY = sorted(BASE.keys() - {"models"})
#: User, privileges, and the results of writing to the root and to /tmp.
LOOK = "id -u; grep -E '^(CapEff|NoNewPrivs):' /proc/1/status; touch /app/written; touch /tmp/written && echo tmp"
STRANGER = (HERE / "stranger.py").read_text()


@pytest.fixture(scope="module")
def stack(docker_engine: Engine) -> Iterator[Stack]:
    """``compose.yaml`` alone, as a newcomer starts it."""
    with stacks.started(docker_engine) as stack:
        yield stack


@pytest.fixture(scope="module")
def closed(stack: Stack) -> Stack:
    """The same project with the layers for users, keys and monitoring.

    Containers restart, and volumes stay.
    """
    stack.files = (*stacks.PLAIN, *stacks.LAYERS)
    stack.env.update(stacks.guards())
    stack.up(*BASE, "prometheus", "jaeger")
    stack.wait_ready()
    return stack


@pytest.fixture(scope="module")
def key(closed: Stack) -> str:
    """A client's key, created as in docs/security.md, and active."""
    said = closed.compose("exec", "-T", "gateway", "python", "-m", "omnibus.cli", "keys", "create", "someone")
    made = next(word for word in said.split() if word.startswith(api_key.PREFIX))
    closed.wait_for(lambda: closed.get("/v1/models", made).status == 200, "gateway that knows the key", within=30)
    return made


# As a newcomer starts it


def test_containers_answer_a_picture_and_a_sound_in_text_and_speech(stack: Stack) -> None:
    answer = stack.ask(seen_and_heard())

    assert answer.status == 200, f"{answer.text}\n{stack.logs()}"
    message, usage = answer.body["choices"][0]["message"], answer.body["usage"]["prompt_tokens_details"]
    assert message["content"]
    assert len(message["audio"]["data"]) > 1000
    assert usage["image_tokens"] > 0
    assert usage["audio_tokens"] > 0


def test_containers_serve_a_second_model(stack: Stack) -> None:
    answer = stack.ask(short())

    assert answer.status == 200, f"{answer.text}\n{stack.logs()}"
    assert answer.body["usage"]["completion_tokens"] <= 5


def test_every_container_is_healthy_and_the_models_were_built(stack: Stack) -> None:
    stack.wait_for(lambda: set(health(stack).values()) == {"healthy"}, "health of all containers", within=90)

    assert sorted(health(stack)) == STAY
    models = stack.containers()["models"]["State"]
    assert (models["Status"], models["ExitCode"]) == ("exited", 0)


def health(stack: Stack) -> dict[str, str]:
    """Reports of the health checks of running containers."""
    states = {name: each["State"] for name, each in stack.containers().items()}
    return {name: state.get("Health", {}).get("Status", "none") for name, state in states.items() if state["Running"]}


@pytest.mark.parametrize("service", OURS)
def test_a_service_runs_as_nobody_special_on_a_root_that_it_cannot_write(stack: Stack, service: str) -> None:
    uid, *privileges, refused, written = stack.shell(service, LOOK).splitlines()

    assert uid == "10001"
    assert [line.split() for line in privileges] == [["CapEff:", "0" * 16], ["NoNewPrivs:", "1"]]
    assert "Read-only file system" in refused
    assert written == "tmp"


@pytest.mark.parametrize(("service", "user"), [("nats", "0"), ("valkey", "999")])
def test_a_server_writes_to_its_volume_alone_and_has_no_privileges(stack: Stack, service: str, user: str) -> None:
    look = "id -u; grep -E '^(CapEff|NoNewPrivs):' /proc/1/status; touch /usr/written; find /data -mindepth 1 | head -1"
    uid, *privileges, refused, written = stack.shell(service, look).splitlines()

    assert uid == user
    assert [line.split() for line in privileges] == [["CapEff:", "0" * 16], ["NoNewPrivs:", "1"]]
    assert "Read-only file system" in refused
    assert written.startswith("/data/")


def test_limits_of_the_file_are_in_force(stack: Stack) -> None:
    found = {name: each["HostConfig"] for name, each in stack.containers().items()}

    assert {name: (host["NanoCpus"], host["Memory"], host["PidsLimit"]) for name, host in found.items()} == {
        name: (int(spec["cpus"] * 1e9), size(spec["mem_limit"]), spec["pids_limit"]) for name, spec in BASE.items()
    }


@pytest.mark.parametrize("service", OURS)
def test_the_kernel_knows_a_services_limit_of_memory(stack: Stack, service: str) -> None:
    said = stack.shell(service, "cd /sys/fs/cgroup && cat memory.max memory/memory.limit_in_bytes").splitlines()

    assert [int(line) for line in said if line.isdigit()] == [size(BASE[service]["mem_limit"])]


def size(text: str) -> int:
    return int(text[:-1]) << {"m": 20, "g": 30}[text[-1]]


def test_nothing_but_the_gateway_is_published_and_that_on_loopback(stack: Stack) -> None:
    bound = {name: each["HostConfig"]["PortBindings"] or {} for name, each in stack.containers().items()}

    assert {name for name, ports in bound.items() if ports} == {"gateway"}
    assert [at["HostIp"] for ports in bound["gateway"].values() for at in ports] == ["127.0.0.1"]


def test_nobody_is_asked_for_a_key_and_control_routes_are_closed(stack: Stack) -> None:
    assert stack.get("/v1/models").status == 200
    assert stack.get("/v1/invocations").status == 403


# Hurt


@pytest.mark.parametrize("service", ["llm-vl", "sidecar"])
def test_what_dies_is_started_again_and_requests_are_answered(stack: Stack, service: str) -> None:
    stack.shell(service, "kill -9 -1")  # everything but the first process, which ends for want of a child

    def again() -> bool:
        found = stack.containers()[service]
        return found["RestartCount"] > 0 and found["State"]["Health"]["Status"] == "healthy"

    stack.wait_for(again, f"healthy {service}")

    assert stack.answered(short())["choices"]
    assert stack.answered(seen_and_heard())["choices"][0]["message"]["audio"]["data"]


def test_requests_are_answered_after_the_bus_was_restarted(stack: Stack) -> None:
    stack.compose("restart", "nats")

    assert stack.answered(seen_and_heard())["choices"][0]["message"]["audio"]["data"]


# Closed, and watched


def test_with_users_and_keys_a_picture_is_answered(closed: Stack, key: str) -> None:
    answer = closed.ask(seen_and_heard(), key)

    assert answer.status == 200, f"{answer.text}\n{closed.logs()}"
    assert answer.body["choices"][0]["message"]["audio"]["data"]
    assert answer.body["usage"]["prompt_tokens_details"]["image_tokens"] > 0


def test_without_a_key_nobody_is_answered_and_without_the_token_nobody_steers(closed: Stack, key: str) -> None:
    assert closed.ask(short()).status == 401
    assert closed.ask(short(), "guessed").status == 401
    assert closed.get("/v1/invocations", key).status == 401
    assert closed.get("/v1/invocations", TOKEN).status == 200


def test_a_key_outlives_the_store(closed: Stack, key: str) -> None:
    closed.compose("restart", "valkey")

    closed.wait_for(lambda: "someone" in closed.shell("gateway", "python -m omnibus.cli keys list"), "key", within=30)
    assert closed.ask(short(), key).status == 200


@pytest.mark.parametrize(
    ("user", "password"),
    [("", ""), ("encoder", "guessed"), ("root", PASSWORDS["gateway"])],
    ids=["nobody", "guess", "root"],
)
def test_the_bus_lets_no_stranger_in(closed: Stack, user: str, password: str) -> None:
    assert "Authorization Violation" in as_somebody(closed, user, password, "omnibus.edge.nobody")


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
    closed: Stack, user: str, subject: str, publishes: bool, listens: bool
) -> None:
    said = as_somebody(closed, user, PASSWORDS[user], subject).lower()

    assert "not let in" not in said
    assert (f'permissions violation for publish to "{subject}"' in said) != publishes
    assert (f'permissions violation for subscription to "{subject}"' in said) != listens


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
    ("service", "said"), [("encoder", "not reached"), ("llm", "not reached"), ("gateway", "NOAUTH")]
)
def test_executors_do_not_reach_the_store_and_it_asks_for_a_password(closed: Stack, service: str, said: str) -> None:
    assert said in closed.exec(service, "python", "-c", KNOCK)


def as_somebody(stack: Stack, *who: str) -> str:
    """Subjects that the bus denies user ``who`` in another container."""
    return stack.exec("encoder", "python", "-c", STRANGER, *who)


def test_prometheus_asks_every_service(closed: Stack) -> None:
    def up() -> bool:
        targets = ask_prometheus(closed, "targets?state=active").get("activeTargets", [])
        return sorted((each["labels"]["service"], each["health"]) for each in targets) == [(one, "up") for one in OURS]

    closed.wait_for(up, "answers of all services to Prometheus", within=90)


def test_prometheus_works_the_alerts_out(closed: Stack) -> None:
    alerts = yaml.safe_load((FILES / "../observability/alerts.yml").read_text())["groups"]

    def rules() -> list[dict[str, Any]]:
        found = [rule for group in ask_prometheus(closed, "rules").get("groups", []) for rule in group["rules"]]
        return found if found and all(rule["health"] != "unknown" for rule in found) else []

    found = closed.wait_for(rules, "rules that were worked out", within=60)
    assert {rule["name"]: rule["health"] for rule in found} == {
        rule["alert"]: "ok" for group in alerts for rule in group["rules"]
    }


def test_prometheus_counts_a_request(closed: Stack, key: str) -> None:
    assert closed.ask(seen_and_heard(), key).status == 200

    query = quote('sum by (service) (omnibus_requests_total{code="ok"}) > 0')
    found = closed.wait_for(
        lambda: ask_prometheus(closed, f"query?query={query}").get("result"), "request that Prometheus knows of", 60
    )
    assert [each["metric"] for each in found] == [{"service": "gateway"}]


def ask_prometheus(stack: Stack, what: str) -> Any:
    """Data of Prometheus' answer, or empty."""
    answer = stack.get(f"/api/v1/{what}", base=f"http://127.0.0.1:{stack.prometheus}")
    return answer.body["data"] if answer.status == 200 else {}


def test_a_request_leaves_its_trace(closed: Stack, key: str) -> None:
    image = {"role": "user", "content": [picture(), {"type": "text", "text": "What is this?"}]}
    assert closed.ask({**short(), "model": "qwen2.5-omni-tiny", "messages": [image]}, key).status == 200

    networks = {name: each["NetworkSettings"]["Networks"].values() for name, each in closed.containers().items()}
    ours = [{at["IPAddress"] for at in networks[name]} for name in ("gateway", "encoder", "llm")]
    # A gateway is in the store's network as well, and sends its spans from one address.
    closed.wait_for(lambda: all(each & spoken(closed) for each in ours), "spans of a request", within=60)


def spoken(stack: Stack) -> set[str]:
    """Addresses that sent spans."""
    return set(re.findall(r"spans of (\S+) at /v1/traces", stack.logs("jaeger", last=1000)))


# Taken down


def test_what_is_taken_down_leaves_its_volumes_alone(stack: Stack) -> None:
    before = set(stack.listed("volume", "ls"))

    stack.down()

    assert before
    assert set(stack.listed("volume", "ls")) == before
    assert stack.listed("ps", "-a") == []
    assert stack.listed("network", "ls") == []
