"""Executors as Deployments, StatefulSets or LeaderWorkerSets of a Kubernetes cluster: one workload for each kind."""

from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote

from omnibus.cluster.presence import DesiredExecutors
from omnibus.errors import OmnibusError
from omnibus.settings import KubernetesSettings
from omnibus_planner.reconcile import manifests
from omnibus_planner.reconcile.backend import RunningWorkload
from omnibus_planner.reconcile.kube_client import ClusterRefused, KubernetesClient
from omnibus_planner.reconcile.leader_election import LeaderLease
from omnibus_planner.reconcile.manifests import Manifest, Templates

_PATHS = {
    "Deployment": "apps/v1/namespaces/{}/deployments",
    "StatefulSet": "apps/v1/namespaces/{}/statefulsets",
    manifests.GROUPS: "leaderworkerset.x-k8s.io/v1/namespaces/{}/leaderworkersets",
}
_MERGE = "application/merge-patch+json"
_NOT_FOUND = 404


class _Place(NamedTuple):
    kind: str
    path: str
    version: str


class KubernetesBackend:
    """A ``Backend``. Raises ``BadRequest`` for invalid templates or an invalid namespace."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self.resync = settings.resync
        self._release = settings.release
        self._templates = Templates(settings.template)
        self._cluster = KubernetesClient(settings)
        self._namespace = quote(self._cluster.namespace, safe="")
        self._lease = LeaderLease(self._cluster, settings.lease or settings.release, self._owner_reference)
        self._belongs = settings.owner
        self._known: Manifest | None = None  # the owner
        self._found: dict[str, _Place] = {}  # by name

    @property
    def is_leader(self) -> bool:
        return self._lease.is_leader

    @property
    def leadership_error(self) -> OmnibusError | None:
        return self._lease.trouble

    async def run_leader_election(self, tell: Callable[[], None]) -> None:
        await self._lease.run(tell)

    def workload_hash(self, executors: DesiredExecutors) -> str:
        return manifests.workload_hash(self._templates.get_template(executors), executors)

    async def list_workloads(self) -> list[RunningWorkload]:
        selector = ",".join(
            f"{key}={value}"
            for key, value in {**manifests.MANAGED, f"{manifests.LABEL_PREFIX}release": self._release}.items()
        )
        workloads: list[RunningWorkload] = []
        self._found = {}
        for kind in _PATHS:
            for item in await self._list_resources(kind, selector):
                each = manifests.parse_workload(item)
                if each is not None:
                    version = str(item["metadata"].get("resourceVersion", ""))
                    self._found[each.name] = _Place(kind, f"{self._resource_path(kind)}/{each.name}", version)
                    workloads.append(each)
        return workloads

    async def start(self, executors: DesiredExecutors) -> None:
        manifest = await self._build_manifest(executors)
        await self._cluster.request_json("POST", self._resource_path(manifest["kind"]), manifest)

    async def scale(self, running: RunningWorkload, executors: DesiredExecutors) -> None:
        await self._cluster.request_json(
            "PATCH", self._found[running.name].path, manifests.scale_patch(executors), _MERGE
        )

    async def replace_executors(self, running: RunningWorkload, executors: DesiredExecutors) -> None:
        manifest, place = await self._build_manifest(executors), self._found[running.name]
        if place.kind != manifest["kind"]:
            await self.stop(running)  # it is now of another kind
            await self.start(executors)
            return
        if place.kind == manifests.GROUPS:  # its operator accepts only replacements of the last version
            manifest["metadata"]["resourceVersion"] = place.version
        await self._cluster.request_json("PUT", place.path, manifest)

    async def stop(self, running: RunningWorkload) -> None:
        try:
            await self._cluster.request_json(
                "DELETE", self._found[running.name].path, {"propagationPolicy": "Background"}
            )
        except ClusterRefused as error:
            if error.answer != _NOT_FOUND:
                raise

    def _resource_path(self, kind: str) -> str:
        return f"/apis/{_PATHS[kind].format(self._namespace)}"

    async def _list_resources(self, kind: str, selector: str) -> list[Manifest]:
        try:
            resources = await self._cluster.request_json(
                "GET", f"{self._resource_path(kind)}?labelSelector={quote(selector, safe='')}"
            )
        except ClusterRefused as error:
            if error.answer == _NOT_FOUND and kind == manifests.GROUPS:
                return []  # this cluster does not have them
            raise
        return resources.get("items") or []

    async def _build_manifest(self, executors: DesiredExecutors) -> Manifest:
        return manifests.build_workload(
            self._templates.get_template(executors), self._release, executors, await self._owner_reference()
        )

    async def _owner_reference(self) -> Manifest | None:
        """Return the owner of all objects that are created here; None if none is configured."""
        if self._belongs and self._known is None:
            path = f"/api/v1/namespaces/{self._namespace}/configmaps/{quote(self._belongs, safe='')}"
            meta = (await self._cluster.request_json("GET", path))["metadata"]
            self._known = {"apiVersion": "v1", "kind": "ConfigMap", "name": meta["name"], "uid": meta["uid"]}
        return self._known
