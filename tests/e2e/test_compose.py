"""The compose file in a real Docker engine: build, start, ask for text and speech, stop."""

import base64
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from omnibus.cli import samples
from omnibus.up.ports import free_ports
from omnibus.up.stack import ROOT
from tests.e2e.docker_engine import Engine

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(2400)]

HERE = Path(__file__).parent / "compose"
FILES = ("-f", str(ROOT / "deploy/compose/compose.yaml"), "-f", str(HERE / "override.yaml"))
BUILD_WITHIN = 1500.0  # seconds, torch from the index included
READY_WITHIN = 240.0


class Stack(NamedTuple):
    url: str  # of a gateway in a container, with everything behind it
    logs: Callable[[], str]


@pytest.fixture(scope="module")
def stack(docker_engine: Engine) -> Iterator[Stack]:
    (port,) = free_ports(1)
    env = {"COMPOSE_PROJECT_NAME": f"omnibus-test-{os.getpid()}", "OMNIBUS_PORT": str(port)}
    directory, engine = ROOT / "deploy/compose", docker_engine
    _build(engine)
    try:
        engine.run_compose(*FILES, "up", "-d", "--no-build", within=300, cwd=directory, env=env)
        stack = Stack(
            f"http://127.0.0.1:{port}",
            lambda: engine.run_compose(*FILES, "logs", "--tail", "20", within=60, cwd=directory, env=env),
        )
        _wait(stack)
        yield stack
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{error}\n{error.output[-4000:]}")
    finally:
        engine.run_compose(*FILES, "down", "-v", "--remove-orphans", within=180, cwd=directory, env=env)


def _build(engine: Engine) -> None:
    """All images; with the host's network, because builds fetch packages."""
    try:
        servers = (
            "build",
            "-q",
            "--network",
            "host",
            "-t",
            "omnibus-test-servers",
            "-f",
            str(HERE / "servers.Dockerfile"),
        )
        engine.run(*servers, str(ROOT), within=BUILD_WITHIN)
        for service in ("sidecar", "planner", "gateway", "llm", "encoder", "generator"):
            named = (
                "-t",
                f"omnibus-{service}",
                "--build-arg",
                f"SERVICE={service}",
                "-f",
                str(ROOT / "deploy/Dockerfile"),
            )
            engine.run("build", "-q", "--network", "host", *named, str(ROOT), within=BUILD_WITHIN)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{error}\n{error.output[-4000:]}")


def _wait(stack: Stack) -> None:
    last = ""
    end = time.monotonic() + READY_WITHIN
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{stack.url}/readyz", timeout=5):
                return
        except urllib.error.HTTPError as error:
            last = error.read().decode()
        except OSError as error:
            last = str(error)
        time.sleep(0.5)
    pytest.fail(f"not ready: {last}\n{stack.logs()}")


def _ask(stack: Stack, body: dict) -> dict:
    request = urllib.request.Request(
        f"{stack.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        pytest.fail(f"{error}: {error.read().decode()}\n{stack.logs()}")


def _data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def test_containers_answer_a_picture_and_a_sound_in_text_and_speech(stack: Stack) -> None:
    sound = _data_url("audio/wav", samples.sound()).partition(",")[2]
    content = [
        {"type": "image_url", "image_url": {"url": _data_url("image/jpeg", samples.picture())}},
        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
        {"type": "text", "text": "What do you see and hear?"},
    ]
    answer = _ask(
        stack,
        {
            "model": "qwen2.5-omni-tiny",
            "messages": [{"role": "user", "content": content}],
            "modalities": ["text", "audio"],
            "audio": {"voice": "Chelsie", "format": "wav", "max_tokens": 60},
            "max_tokens": 60,
            "temperature": 0,
        },
    )

    message = answer["choices"][0]["message"]
    assert message["content"]
    assert len(message["audio"]["data"]) > 1000
    assert answer["usage"]["prompt_tokens_details"]["image_tokens"] > 0
    assert answer["usage"]["prompt_tokens_details"]["audio_tokens"] > 0


def test_containers_serve_a_second_model(stack: Stack) -> None:
    answer = _ask(
        stack, {"model": "qwen2.5-vl-tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    )

    assert answer["usage"]["completion_tokens"] <= 5
