"""Executors as Deployments or StatefulSets of a Kubernetes cluster: one workload for each kind."""

from urllib.parse import quote

from omnibus.settings import KubernetesSettings
from omnibus.wanted import Wanted
from services.planner.reconcile import manifests
from services.planner.reconcile.backend import Running
from services.planner.reconcile.cluster import Cluster, ClusterRefused
from services.planner.reconcile.manifests import Templates

_PATHS = {"Deployment": "deployments", "StatefulSet": "statefulsets"}
_MERGE = "application/merge-patch+json"
_GONE = 404


class Kubernetes:
    """A ``Backend``. Raises ``BadRequest`` for templates or a namespace that are no good."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self.resync = settings.resync
        self._release = settings.release
        self._templates = Templates(settings.template)
        self._cluster = Cluster(settings)
        self._root = f"/apis/apps/v1/namespaces/{quote(self._cluster.namespace, safe='')}"
        self._found: dict[str, str] = {}  # name to path

    def mark(self, wanted: Wanted) -> str:
        return manifests.mark(self._templates.of(wanted.service), wanted)

    async def running(self) -> list[Running]:
        chosen = ",".join(
            f"{key}={value}" for key, value in {**manifests.MANAGED, f"{manifests.OURS}release": self._release}.items()
        )
        found: list[Running] = []
        self._found = {}
        for path in sorted(_PATHS.values()):
            listed = await self._cluster.call("GET", f"{self._root}/{path}?labelSelector={quote(chosen, safe='')}")
            for item in listed.get("items") or []:
                each = manifests.running(item)
                if each is not None:
                    self._found[each.name] = f"{self._root}/{path}/{each.name}"
                    found.append(each)
        return found

    async def start(self, wanted: Wanted) -> None:
        made = self._made(wanted)
        await self._cluster.call("POST", f"{self._root}/{_PATHS[made['kind']]}", made)

    async def scale(self, running: Running, replicas: int) -> None:
        await self._cluster.call("PATCH", self._found[running.name], {"spec": {"replicas": replicas}}, _MERGE)

    async def change(self, running: Running, wanted: Wanted) -> None:
        made = self._made(wanted)
        if self._found[running.name] != f"{self._root}/{_PATHS[made['kind']]}/{running.name}":
            await self.stop(running)  # it has become one of the other kind
            await self.start(wanted)
            return
        await self._cluster.call("PUT", self._found[running.name], made)

    async def stop(self, running: Running) -> None:
        try:
            await self._cluster.call("DELETE", self._found[running.name], {"propagationPolicy": "Background"})
        except ClusterRefused as error:
            if error.answer != _GONE:
                raise

    def _made(self, wanted: Wanted) -> manifests.Manifest:
        return manifests.workload(self._templates.of(wanted.service), self._release, wanted)
