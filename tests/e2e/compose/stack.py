"""The compose files as containers: build, start, query, inspect, stop. Every wait has a timeout."""

import base64
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from omnibus.cli import demo_media
from omnibus.up.ports import free_ports
from tests.e2e.docker_engine import DockerEngine

ROOT = Path(__file__).parents[3]

HERE = Path(__file__).parent
FILES = ROOT / "deploy/compose"
SERVICES = ("sidecar", "planner", "gateway", "llm", "encoder", "generator")
USERS = ("gateway", "planner", "sidecar", "encoder", "llm", "generator", "operator")
PASSWORDS = {user: f"word-of-{user}" for user in USERS}
TOKEN = "the-operators-own-token"
PLAIN = (FILES / "compose.yaml", HERE / "override.yaml")
LAYERS = (FILES / "compose.users.yaml", FILES / "compose.observability.yaml", HERE / "override.observability.yaml")
BUILD_WITHIN = 1500.0  # seconds, torch from the index included
UP_WITHIN = 600.0
DOWN_WITHIN = 180.0
READY_WITHIN = 240.0
#: Statuses of the gateway while a service recovers.
LATER = (429, 502, 503, 504)


class HttpAnswer(NamedTuple):
    """Status and text of an HTTP answer; without one, 0 and the reason."""

    status: int
    text: str

    @property
    def body(self) -> Any:
        return json.loads(self.text)


class ComposeStack:
    """One project of compose. ``files`` are the layers that it runs with."""

    def __init__(self, engine: DockerEngine) -> None:
        self.engine = engine
        gateway, self.prometheus, grafana, jaeger = free_ports(4)
        self.name = f"omnibus-test-{os.getpid()}"
        self.url = f"http://127.0.0.1:{gateway}"
        self.files: tuple[Path, ...] = PLAIN
        self.env = {
            "COMPOSE_PROJECT_NAME": self.name,
            "OMNIBUS_PORT": str(gateway),
            "PROMETHEUS_PORT": str(self.prometheus),
            "GRAFANA_PORT": str(grafana),
            "JAEGER_PORT": str(jaeger),
            "PROMETHEUS_IMAGE": "omnibus-test-prometheus",
        }

    # What compose and the engine do

    def compose(self, *arguments: str, within: float = 60.0) -> str:
        """``docker compose ARGUMENTS`` with the layers; a failure fails the test with the output."""
        try:
            return self._run(*arguments, within=within)
        except subprocess.CalledProcessError as error:
            pytest.fail(f"{error}\n{error.output[-4000:]}")

    def _run(self, *arguments: str, within: float = 60.0) -> str:
        files = [part for file in self.files for part in ("-f", str(file))]
        return self.engine.run_compose(*files, *arguments, within=within, cwd=FILES, env=self.env)

    def up(self, *services: str) -> None:
        self.compose("up", "-d", "--no-build", *services, within=UP_WITHIN)

    def down(self) -> None:
        """Containers and networks; volumes stay."""
        self.compose("down", within=DOWN_WITHIN)

    def logs(self, *services: str, last: int = 20) -> str:
        """The last lines of each service."""
        return self.compose("logs", "--tail", str(last), *services)

    def shell(self, service: str, command: str) -> str:
        """Return the output of ``command`` in the service's container.

        It includes standard error, and the exit code is ignored.
        """
        return self.exec(service, "sh", "-c", f"exec 2>&1; {command}")

    def exec(self, service: str, *command: str) -> str:
        """The same of a program and its arguments."""
        (container,) = self.list_ids("ps", "--filter", f"label=com.docker.compose.service={service}")
        try:
            return self.engine.run("exec", container, *command, within=60)
        except subprocess.CalledProcessError as error:
            return error.output

    def containers(self) -> dict[str, dict[str, Any]]:
        """The engine's report of each service's container."""
        ids = self.list_ids("ps", "-a")
        reports = json.loads(self.engine.run("inspect", *ids, within=60)) if ids else []
        return {each["Config"]["Labels"]["com.docker.compose.service"]: each for each in reports}

    def list_ids(self, *command: str) -> list[str]:
        """The ids or names that ``docker COMMAND`` lists of this project."""
        label = f"label=com.docker.compose.project={self.name}"
        return self.engine.run(*command, "-q", "--filter", label, within=60).split()

    # What clients do

    def get(self, path: str, key: str = "", base: str = "") -> HttpAnswer:
        return _read_answer(urllib.request.Request(f"{base or self.url}{path}", headers=_auth_headers(key)))

    def ask(self, body: dict[str, Any], key: str = "") -> HttpAnswer:
        """POST a chat."""
        headers = {"Content-Type": "application/json", **_auth_headers(key)}
        return _read_answer(
            urllib.request.Request(f"{self.url}/v1/chat/completions", json.dumps(body).encode(), headers)
        )

    def wait_for_answer(self, body: dict[str, Any], key: str = "") -> Any:
        """The JSON of a chat that must succeed, though perhaps not yet."""

        def ask_once() -> HttpAnswer | None:
            answer = self.ask(body, key)
            return None if answer.status in LATER or not answer.status else answer

        answer = self.wait_for(ask_once, f"an answer to {str(body)[:80]}")
        if answer.status != 200:
            pytest.fail(f"{answer}\n{self.logs()}")
        return answer.body

    def wait_for(self, look: Callable[[], Any], description: str, within: float = READY_WITHIN) -> Any:
        """Wait until ``look`` returns a true value, and return it; a failure shows the logs."""
        end = time.monotonic() + within
        while time.monotonic() < end:
            if result := look():
                return result
            time.sleep(0.5)
        pytest.fail(f"no {description} within {within:g} s\n{self.get('/readyz')}\n{self.logs()}")

    def wait_ready(self) -> None:
        self.wait_for(lambda: self.get("/readyz").status == 200, "ready gateway")


def _auth_headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _read_answer(request: urllib.request.Request) -> HttpAnswer:
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return HttpAnswer(response.status, response.read().decode())
    except urllib.error.HTTPError as error:
        return HttpAnswer(error.code, error.read().decode())
    except OSError as error:
        return HttpAnswer(0, str(error))


@contextmanager
def start_stack(engine: DockerEngine) -> Iterator[ComposeStack]:
    """Build the images, start ``compose.yaml``, and remove everything afterwards."""
    _build_images(engine)
    stack = ComposeStack(engine)
    try:
        stack.up()
        stack.wait_ready()
        yield stack
    finally:
        stack.files, stack.env = (*PLAIN, *LAYERS), {**stack.env, **guard_variables()}
        stack.compose("down", "-v", "--remove-orphans", within=DOWN_WITHIN)


def guard_variables() -> Mapping[str, str]:
    """Variables that enable access control: users on the bus, API keys, an operator's token."""
    passwords = {f"OMNIBUS_NATS_{user.upper()}_PASSWORD": password for user, password in PASSWORDS.items()}
    store = {"OMNIBUS_STORE_PASSWORD": "word-of-the-store", "OMNIBUS_STORE_SECRET": "word-of-records"}
    return {**passwords, **store, "OMNIBUS_GATEWAY_KEYS": "true", "OMNIBUS_GATEWAY_ADMIN_TOKEN": TOKEN}


def _build_images(engine: DockerEngine) -> None:
    """All images; with the host's network, because builds fetch packages."""
    dockerfile, other_images = str(ROOT / "deploy/Dockerfile"), ("servers", "prometheus")
    images = [(f"omnibus-test-{name}", str(HERE / f"{name}.Dockerfile"), name) for name in other_images]
    images += [(f"omnibus-{name}", dockerfile, name) for name in SERVICES]
    for image, file, name in images:
        options = ("-t", image, "-f", file, "--build-arg", f"SERVICE={name}")
        try:
            engine.run("build", "-q", "--network", "host", *options, str(ROOT), within=BUILD_WITHIN)
        except subprocess.CalledProcessError as error:
            pytest.fail(f"{error}\n{error.output[-4000:]}")


# Requests

SPOKEN = {
    "modalities": ["text", "audio"],
    "audio": {"voice": "Chelsie", "format": "wav", "max_tokens": 60},
    "max_tokens": 60,
    "temperature": 0,
}


def seen_and_heard() -> dict[str, Any]:
    """An image and an audio clip, answered in text and speech.

    Every executor of the first model takes part.
    """
    sound = base64.b64encode(demo_media.make_audio()).decode()
    content = [
        make_picture(),
        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
        {"type": "text", "text": "What do you see and hear?"},
    ]
    return {"model": "qwen2.5-omni-tiny", "messages": [{"role": "user", "content": content}], **SPOKEN}


def short_body() -> dict[str, Any]:
    """One for the second model."""
    return {"model": "qwen2.5-vl-tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


def make_picture() -> dict[str, Any]:
    data = base64.b64encode(demo_media.make_image()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}}
