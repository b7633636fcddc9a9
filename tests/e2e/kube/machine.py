"""Machines of a cluster that run an ``Api``'s pods as processes.

They imitate kubelets. Volumes become directories, ports free ones, and names of services addresses of this machine.
Each machine has its own loopback address and ``/dev/shm``. A pod that ends is restarted. A pod of a new template starts
before that of the old one stops.
"""

import asyncio
import base64
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from omnibus.process.spec import PACKAGE_PATH
from omnibus.process.tuning import die_with_parent
from omnibus.service import until_cancelled
from omnibus.up import fork_client
from omnibus.up import infra as binaries
from omnibus.up.ports import free_ports
from tests.e2e import warm
from tests.e2e.system import ROOT
from tests.kube.api import Api, Object

LOOK, AGAIN = 0.1, 0.5
SHM = "/dev/shm"
WORKLOADS = ("StatefulSet", "DaemonSet", "Deployment")
#: Settings for the ports of services, by the name of the port.
PORTS = {
    "metrics": "OMNIBUS_SERVICE_METRICS_PORT",
    "http": "OMNIBUS_GATEWAY_PORT",
    "peers": "OMNIBUS_SIDECAR_PORT",
}


class Pod:
    """One pod of a workload on ``node``; ``ports`` are its real ports by name."""

    def __init__(self, name: str, template: Object, node: str, machine: "Machine") -> None:
        self.name = name
        self.node = node
        self.spec = template["spec"]
        self.container = self.spec["containers"][0]
        names = [each["name"] for each in self.container["ports"]]
        self.ports = dict(zip(names, free_ports(len(names)), strict=True)) | machine.ports
        self.starts = 0
        self._machine = machine
        self._root = machine.directory / "pods" / name
        self._places: dict[str, str] = {}
        self._task = asyncio.create_task(self._live())

    @property
    def log(self) -> str:
        return (self._root / "log").read_text() if (self._root / "log").is_file() else ""

    async def ready(self) -> bool:
        probe = self.container["readinessProbe"].get("httpGet")
        if probe is None:
            return self.starts > 0
        url = f"http://127.0.0.1:{self.ports[probe['port']]}{probe['path']}"

        def is_answering() -> bool:
            with suppress(OSError), urllib.request.urlopen(url, timeout=1) as answer:
                return answer.status == 200
            return False

        return await asyncio.to_thread(is_answering)

    async def stop(self) -> None:
        await until_cancelled(self._task)

    def refresh(self) -> None:
        """Update the files of ConfigMaps, until the pod ends."""
        maps = self._machine.api.of("ConfigMap")
        for volume in self.spec["volumes"]:
            for file, text in maps.get(volume.get("configMap", {}).get("name"), {}).get("data", {}).items():
                self._write(self._root / volume["name"] / file, self._machine.apply_edits(text).encode())

    async def _live(self) -> None:
        self._mount()
        for container in self.spec.get("initContainers", ()):
            assert await self._run(container, {}) == 0, self.log
        while True:
            self.starts += 1
            await self._run(self.container, self._env())
            await asyncio.sleep(AGAIN)

    async def _run(self, container: Object, env: Mapping[str, str]) -> int:
        command = container.get("command") or ["python", "-m", f"omnibus_{container['name']}"]
        argv = [self._localize_text(each) for each in command]
        argv[0] = self._machine.programs.get(argv[0], argv[0])
        if argv[:2] == [sys.executable, "-m"] and argv[2].startswith("omnibus_"):  # imports nothing, see ``warm``
            argv = [*fork_client.fork_server_command(self._machine.fork_server, *argv[2:])]
        with (self._root / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *argv, env={**self._machine.env, **env}, cwd=ROOT, stdout=log, stderr=log, preexec_fn=die_with_parent()
            )
        try:
            return await process.wait()
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await process.wait()
            raise

    # What it is given

    def _mount(self) -> None:
        volumes = {each["name"]: each for each in self.spec["volumes"]}
        for mount in self.container["volumeMounts"]:
            volume = volumes.get(mount["name"], {"name": mount["name"]})
            where = self._root / mount["name"]
            if "hostPath" in volume:
                where = self._machine.host_path(self.node, volume["hostPath"]["path"])
            elif "persistentVolumeClaim" in volume:
                where = self._machine.directory / "claims" / volume["persistentVolumeClaim"]["claimName"]
            where.mkdir(parents=True, exist_ok=True)
            if mount["mountPath"] not in ("/tmp", str(where)):
                self._places[mount["mountPath"]] = str(where)
            for file, word in self._secret(volume).items():
                self._write(where / file, word)
        self.refresh()

    def _secret(self, volume: Object) -> dict[str, bytes]:
        if "secret" not in volume:
            return {}
        data = self._machine.api.of("Secret")[volume["secret"]["secretName"]]["data"]
        entries = volume["secret"].get("items") or [{"key": key, "path": key} for key in data]
        return {each["path"]: base64.b64decode(data[each["key"]]) for each in entries}

    def _write(self, path: Path, data: bytes) -> None:
        data = self._localize_text(data.decode()).encode()
        if not path.is_file() or path.read_bytes() != data:
            fresh = path.with_name(f".{path.name}")
            fresh.write_bytes(data)
            fresh.replace(path)

    def _env(self) -> dict[str, str]:
        environment: dict[str, str] = {}
        for each in self.container["env"]:
            environment[each["name"]] = self._localize_text(_expand_variables(self._value(each), environment))
        for port, variable in PORTS.items():
            if port in self.ports:
                environment[variable] = str(self.ports[port])
        if self.spec.get("automountServiceAccountToken"):
            environment |= self._machine.account
        return environment

    def _value(self, each: Object) -> str:
        source = each.get("valueFrom")
        if source is None:
            return str(each.get("value", ""))
        if "fieldRef" in source:
            fields = {
                "metadata.name": self.name,
                "spec.nodeName": self.node,
                "status.podIP": self._machine.nodes[self.node],
            }
            return fields[source["fieldRef"]["fieldPath"]]
        reference = source["secretKeyRef"]
        return base64.b64decode(self._machine.api.of("Secret")[reference["name"]]["data"][reference["key"]]).decode()

    def _localize_text(self, text: str) -> str:
        """``text`` with the machine's paths, ports and addresses."""
        for path in sorted(self._places, key=len, reverse=True):
            text = re.sub(rf"(?<![\w/.]){re.escape(path)}(?![\w.-])", self._places[path], text)
        return self._machine.apply_edits(text)


class Machine:
    """The machines, with their overrides.

    ``edits`` change all text given to pods. ``ports`` replace free ones. ``account`` is passed to pods that talk to the
    cluster. ``nodes`` are addresses by machine name. ``places`` contains the machine by container name; pods of other
    containers run on the first machine.
    """

    def __init__(
        self, api: Api, directory: Path, edits: Mapping[str, str], ports: Mapping[str, int], account: Mapping[str, str]
    ) -> None:
        self.api = api
        self.directory = directory
        self.ports = dict(ports)
        self.account = dict(account)
        self.nodes = {"n1": "127.0.0.1"}
        self.places: dict[str, str] = {}
        self.pods: dict[str, Pod] = {}
        self.programs = {"python": sys.executable, "nats-server": str(binaries.find_binary(binaries.NATS))}
        self.fork_server = warm.fork_server_socket()  # here, for the kernel ends it with the thread that has started it
        self._edits = dict(edits)
        bin = directory / "bin"
        bin.mkdir(parents=True)
        (bin / "valkey-server").symlink_to(binaries.find_binary(binaries.VALKEY))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OMNIBUS_")}
        self.env = {
            **environment,
            "PATH": f"{bin}:{environment['PATH']}",
            "PYTHONPATH": f"{PACKAGE_PATH}:{ROOT}",
            "OMP_NUM_THREADS": "1",
        }

    def apply_edits(self, text: str) -> str:
        for one, other in self._edits.items():
            text = text.replace(one, other)
        return text

    def host_path(self, node: str, path: str) -> Path:
        """Real location of a machine's ``path``.

        The first machine is this one; others share nothing with it.
        """
        if node == next(iter(self.nodes)):
            return Path(path)
        mark = hashlib.sha256(str(self.directory).encode()).hexdigest()[:8]
        return Path(SHM) / f"omnibus-{mark}-{node}" / path.strip("/").replace("/", "-")

    def of(self, workload: str) -> list[Pod]:
        return [pod for name, pod in self.pods.items() if name.startswith(f"{workload}-")]

    async def run(self) -> None:
        """Run until cancelled, then stop all pods."""
        try:
            while True:
                await self._look()
                await asyncio.sleep(LOOK)
        finally:
            await asyncio.gather(*(pod.stop() for pod in self.pods.values()))
            self.pods.clear()
            for node in list(self.nodes)[1:]:
                shutil.rmtree(self.host_path(node, ""), ignore_errors=True)

    async def _look(self) -> None:
        workloads = [one for kind in WORKLOADS for one in self.api.of(kind).values()]
        pods_by_name = {name: (template, node) for one in workloads for name, template, node in self._pods(one)}
        for name in pods_by_name.keys() - self.pods.keys():
            self.pods[name] = Pod(name, *pods_by_name[name], self)
        fresh = {name for name in pods_by_name if not await self.pods[name].ready()}
        for name in self.pods.keys() - pods_by_name.keys():
            workload = name.rpartition("-")[0].rpartition("-")[0]
            if not any(other.startswith(f"{workload}-") for other in fresh):
                await self.pods[name].stop()
                del self.pods[name]
        for pod in self.pods.values():
            if pod.name in pods_by_name:
                pod.refresh()

    def _pods(self, workload: Object) -> list[tuple[str, Object, str]]:
        """Names of pods, with their templates and machines; equal templates keep equal names."""
        template = workload["spec"]["template"]
        document = json.dumps([template, workload["spec"].get("volumeClaimTemplates")], sort_keys=True)
        mark = hashlib.sha256(document.encode()).hexdigest()[:6]
        place = self.places.get(template["spec"]["containers"][0]["name"], next(iter(self.nodes)))
        places = [*self.nodes] if workload["kind"] == "DaemonSet" else [place] * workload["spec"].get("replicas", 1)
        name = workload["metadata"]["name"]
        return [(f"{name}-{mark}-{index}", template, node) for index, node in enumerate(places)]


def _expand_variables(text: str, variables: Mapping[str, str]) -> str:
    """Expand variables like Kubernetes: known ``$(NAME)``, and ``$$`` to ``$``."""

    def expand_match(match: re.Match[str]) -> Any:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)", expand_match, text)
