"""The planner as in its pod, with the chart's variables and files."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from omnibus_planner.service import PlannerService
from tests.kube.api import Api, Object
from tests.kube.serve import CERTIFICATE, TOKEN
from tests.unit.chart.shapes import read_env


class PlannerPod:
    """A planner's pod; ``servers`` are the real addresses of the bus, the store and the API server."""

    def __init__(self, api: Api, directory: Path, servers: Mapping[str, str]) -> None:
        self._api = api
        self._directory = directory
        self._servers = servers

    @asynccontextmanager
    async def run_planner(self) -> AsyncIterator[PlannerService]:
        """Yield a started planner until the end of the block."""
        pod = self._api.of("Deployment")["om-planner"]["spec"]["template"]
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self._read_environment(pod).items():
                patch.setenv(name, value)
            service = PlannerService()
            try:
                await service.startup()
                yield service
            finally:
                await service.shutdown()

    def _read_environment(self, pod: Object) -> dict[str, str]:
        environment = {name: value for name, value in read_env(pod).items() if isinstance(value, str)}
        for path, name in self._map_mounts(pod).items():
            where = self._directory / path.strip("/")
            where.mkdir(parents=True, exist_ok=True)
            for file, text in self._api.of("ConfigMap")[name]["data"].items():
                (where / file).write_text(text)
            environment = {key: value.replace(path, str(where)) for key, value in environment.items()}
        account = self._directory / "account"
        account.mkdir(exist_ok=True)
        for file, text in {"token": TOKEN, "namespace": "ns", "ca.crt": CERTIFICATE.read_text()}.items():
            (account / file).write_text(text)
        return {**environment, **self._servers, "OMNIBUS_KUBERNETES_ACCOUNT": str(account)}

    def _map_mounts(self, pod: Object) -> dict[str, str]:
        """Return the ConfigMaps by their mount path."""
        maps = {each["name"]: each["configMap"]["name"] for each in pod["spec"]["volumes"] if "configMap" in each}
        mounts = pod["spec"]["containers"][0]["volumeMounts"]
        return {each["mountPath"]: maps[each["name"]] for each in mounts if each["name"] in maps}
