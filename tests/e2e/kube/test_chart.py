"""A release of the chart serves requests; its pods run as processes."""

import asyncio
import contextlib
import hashlib
import secrets
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from omnibus.service import until_cancelled
from omnibus.up.ports import free_ports
from tests.e2e.kube.machine import Machine, Pod
from tests.e2e.small.load import QUESTION, make_body
from tests.e2e.system import is_listening
from tests.kube.api import Api
from tests.kube.helm import Helm, Values, merge_values, read_overlay
from tests.kube.serve import CERTIFICATE, TOKEN, Door, serve_door

pytestmark = pytest.mark.e2e

WITHIN = 240.0  # seconds; several processes that import torch
MODEL = "qwen2.5-vl-tiny"
WANTED = {**make_body(QUESTION.messages[0]["content"]), "model": MODEL}


class ChartRelease:
    """An installed chart and the machine that runs it."""

    def __init__(self, name: str, helm: Helm, api: Api, machine: Machine) -> None:
        self.name = name
        self.helm = helm
        self.api = api
        self.machine = machine

    def values(self, replicas: int = 1, batch: int = 16) -> Values:
        """Overlay for CPUs with one model, several replicas, and batch rows."""
        whole = read_overlay("values-cpu.yaml")
        model = whole["models"]["models"][MODEL]
        model["options"]["EL"]["replicas"] = replicas
        whole["models"]["models"] = {MODEL: model}
        whole["checkpoints"]["tiny"] = ["qwen2_5_vl"]
        executors = {"settings": {"executor": {"batch": batch}}}
        return merge_values(whole, {"fullnameOverride": self.name, "executors": executors})

    @property
    def shared(self) -> Path:
        """Directory that the pods of this release share on the machine."""
        return Path("/dev/shm") / f"omnibus-{hashlib.sha256(f'ns/{self.name}'.encode()).hexdigest()[:8]}"

    @property
    def executors(self) -> list[Pod]:
        return [pod for pod in self.machine.pods.values() if pod.container["name"] == "llm"]

    async def until_ready(self) -> str:
        """Return the URL of a gateway that reports every stage as ready."""
        async with asyncio.timeout(WITHIN), httpx.AsyncClient() as http:
            while True:
                for pod in self.machine.of(f"{self.name}-gateway"):
                    url = f"http://127.0.0.1:{pod.ports['http']}"
                    with contextlib.suppress(httpx.HTTPError):
                        if (await http.get(f"{url}/readyz")).status_code == 200:
                            return url
                await asyncio.sleep(0.2)

    async def read_counters(self, pod: Pod) -> dict[str, float]:
        """Samples of a pod's metrics, summed over labels."""
        async with httpx.AsyncClient() as http:
            text = (await http.get(f"http://127.0.0.1:{pod.ports['metrics']}/metrics")).text
        totals: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
        return totals

    async def wait_until(self, true) -> None:
        async with asyncio.timeout(WITHIN):
            while not true():
                await asyncio.sleep(0.1)


@pytest.fixture
async def release(tmp_path: Path) -> AsyncIterator[ChartRelease]:
    name, door = f"om-{secrets.token_hex(3)}", Door(Api())
    bus, monitor, store = free_ports(3)
    edits = {
        f"{name}-nats:4222": f"127.0.0.1:{bus}", f"{name}-valkey:6379": f"127.0.0.1:{store}",
        "port: 4222": f"host: 127.0.0.1\nport: {bus}", "http: 8222": f"http: 127.0.0.1:{monitor}",
        "requirepass ": f"bind 127.0.0.1\nport {store}\nrequirepass ", "0.0.0.0": "127.0.0.1",
    }  # fmt: skip
    ports = {"bus": bus, "monitor": monitor, "store": store}
    account = tmp_path / "account"
    account.mkdir()
    for file, text in {"token": TOKEN, "namespace": "ns", "ca.crt": CERTIFICATE.read_text()}.items():
        (account / file).write_text(text)
    with serve_door(door) as url:
        environment = {"OMNIBUS_KUBERNETES_URL": url, "OMNIBUS_KUBERNETES_ACCOUNT": str(account)}
        machine = Machine(door.api, tmp_path / "machine", edits, ports, environment)
        release = ChartRelease(name, Helm(url, tmp_path / "helm"), door.api, machine)
        work = asyncio.create_task(machine.run())
        try:
            yield release
        finally:
            for pod in machine.pods.values():  # shown when the test fails
                print(f"--- {pod.name}, started {pod.starts} times\n{pod.log[-3000:]}")
            try:
                await until_cancelled(work)
            finally:
                shutil.rmtree(release.shared, ignore_errors=True)


async def test_a_release_serves_scales_and_does_without_its_planner(release: ChartRelease):
    await release.helm.install("om", release.values())
    url = await release.until_ready()
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        first = await http.post("/v1/chat/completions", json=WANTED)
        met = release.shared.is_dir()

        await release.helm.upgrade("om", release.values(replicas=2))
        await release.wait_until(lambda: len(release.executors) == 2)
        await release.until_ready()
        deployment = release.api.of("Deployment")[f"{release.name}-planner"]
        deployment["spec"]["replicas"] = 0
        await release.wait_until(lambda: release.machine.of(f"{release.name}-planner") == [])
        alone = [await http.post("/v1/chat/completions", json=WANTED) for _ in range(4)]
    starts = {pod.name: pod.starts for pod in release.executors}
    await release.helm.uninstall("om")
    await release.wait_until(lambda: not release.machine.pods)
    left = [name for name, port in release.machine.ports.items() if is_listening(port)]

    assert met
    assert first.status_code == 200, first.text
    texts = {answer.json()["choices"][0]["message"]["content"] for answer in (first, *alone)}
    assert len(texts) == 1
    assert len(starts) == 2
    assert release.api.objects == {}
    assert left == []


async def test_an_image_crosses_to_the_executor_of_another_machine(release: ChartRelease):
    release.machine.nodes = {"n1": "127.0.0.2", "n2": "127.0.0.3"}
    release.machine.places = {"llm": "n2"}
    await release.helm.install("om", release.values())
    url = await release.until_ready()
    one, two = sorted(release.machine.of(f"{release.name}-sidecar"), key=lambda pod: pod.node)
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        answers = [await http.post("/v1/chat/completions", json=WANTED) for _ in range(2)]

    sent_counters, pulled_counters = await release.read_counters(one), await release.read_counters(two)
    assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
    assert len({answer.json()["choices"][0]["message"]["content"] for answer in answers}) == 1
    assert {pod.node for pod in release.executors} == {"n2"}
    assert pulled_counters["omnibus_node_pulled_bytes_total"] == sent_counters["omnibus_node_sent_bytes_total"] > 0
    assert (
        pulled_counters["omnibus_node_pull_failures_total"]
        == sent_counters["omnibus_node_refused_connections_total"]
        == 0
    )
    async with asyncio.timeout(WITHIN):
        while sum([(await release.read_counters(pod))["omnibus_arena_leases"] for pod in (one, two)]):
            await asyncio.sleep(0.2)
    logs = one.log + two.log
    await release.helm.uninstall("om")
    await release.wait_until(lambda: not release.machine.pods)

    assert "violation" not in logs
    assert list(Path("/dev/shm").glob(f"omnibus-n?-{release.shared.name[-8:]}")) == []
