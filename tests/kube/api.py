"""State and answers of a cluster's API server, without HTTP.

It has objects, kinds, owners, and conflicts. It has no controllers, so nothing runs. Objects of a deleted owner are
deleted, as by the garbage collector.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Object = dict[str, Any]
#: Content type of a server-side apply.
APPLY = "application/apply-patch+yaml"

#: Kinds that run pods of executors.
WORKLOADS = ("Deployment", "StatefulSet", "LeaderWorkerSet")
#: The API versions of every cluster and their kinds; those of a whole cluster begin with a slash.
BUILT_IN = {
    "v1": "ConfigMap Namespace/ PersistentVolumeClaim Pod Secret Service ServiceAccount",
    "apps/v1": "DaemonSet Deployment StatefulSet",
    "autoscaling/v2": "HorizontalPodAutoscaler",
    "batch/v1": "Job",
    "coordination.k8s.io/v1": "Lease",
    "networking.k8s.io/v1": "Ingress NetworkPolicy",
    "policy/v1": "PodDisruptionBudget",
    "rbac.authorization.k8s.io/v1": "ClusterRole/ ClusterRoleBinding/ Role RoleBinding",
}
#: Those that operators add.
ADDED = {
    "gateway.networking.k8s.io/v1": "HTTPRoute",
    "keda.sh/v1alpha1": "ScaledObject",
    "leaderworkerset.x-k8s.io/v1": "LeaderWorkerSet",
    "monitoring.coreos.com/v1": "ServiceMonitor",
}


#: Replacing their objects requires the resource version that the client has read.
_OPERATED = frozenset(name for names in ADDED.values() for name in names.split())


class Kind(NamedTuple):
    version: str
    name: str
    namespaced: bool

    @property
    def plural(self) -> str:
        name = self.name.lower()
        return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"

    def path(self, namespace: str) -> str:
        root = f"/api/{self.version}" if "/" not in self.version else f"/apis/{self.version}"
        return f"{root}/namespaces/{namespace}/{self.plural}" if self.namespaced else f"{root}/{self.plural}"


class Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """The API server.

    ``objects`` by path; ``asked`` contains every request except discovery.
    """

    def __init__(self, added: Mapping[str, str] | None = None, version: str = "1.33") -> None:
        told = {**BUILT_IN, **(ADDED if added is None else added)}
        self.kinds = [
            Kind(group, name.rstrip("/"), not name.endswith("/"))
            for group, names in told.items()
            for name in names.split()
        ]
        self.version = version
        self.objects: dict[str, Object] = {}
        self.asked: list[tuple[str, str]] = []
        self._numbers = itertools.count(1)

    def of(self, kind: str) -> dict[str, Object]:
        """All objects of ``kind`` by name."""
        found = (one for one in self.objects.values() if one["kind"] == kind)
        return {one["metadata"]["name"]: one for one in found}

    @property
    def changes(self) -> list[tuple[str, str]]:
        """Method and plural of each change to workloads."""
        kinds = {kind.path("ns"): kind.plural for kind in self.kinds if kind.name in WORKLOADS}
        asked = [(method, kinds.get(path) or kinds.get(path.rpartition("/")[0])) for method, path in self.asked]
        return [(method, kind) for method, kind in asked if kind is not None and method != "GET"]

    def answer(self, method: str, path: str, query: Mapping[str, list[str]], body: Any, media: str) -> tuple[int, Any]:
        """Status and JSON of the answer."""
        try:
            found = self._discovery(path)
            if found is not None:
                return 200, found
            self.asked.append((method, path))
            return self._change(method, path, query, body, media)
        except Refusal as refusal:
            reason = {404: "NotFound", 409: "AlreadyExists"}.get(refusal.status, "Invalid")
            said = {"message": str(refusal), "reason": reason, "code": refusal.status, "status": "Failure"}
            return refusal.status, {"kind": "Status", "apiVersion": "v1", **said}

    def _change(
        self, method: str, path: str, query: Mapping[str, list[str]], body: Any, media: str
    ) -> tuple[int, Object]:
        kind, name = self._kind(path)
        if method == "GET" and not name:
            return 200, self._list(kind, path, query)
        made, known = {"apiVersion": kind.version, "kind": kind.name, **(body or {})}, self.objects.get(path)
        if method == "POST":
            path = f"{path}/{made['metadata']['name']}"
            if path in self.objects:
                raise Refusal(409, f"{path} already exists")
            return 201, self._store(path, made, None)
        if known is None and media == APPLY:
            return 201, self._store(path, made, None)
        if known is None:
            raise Refusal(404, f"{path} not found")
        if method == "DELETE":
            known = self._remove(path)
        elif method in ("PUT", "PATCH"):
            known = self._store(path, made if method == "PUT" or media == APPLY else _merged(known, body), known)
        return 200, known

    def _kind(self, path: str) -> tuple[Kind, str]:
        """The kind of ``path`` and the name in it; an empty one is for all of them."""
        parts = path.strip("/").split("/")
        version = parts[1] if parts[0] == "api" else "/".join(parts[1:3])
        rest = parts[2 if parts[0] == "api" else 3 :]
        rest = rest[2:] if len(rest) > 2 and rest[0] == "namespaces" else rest
        for kind in self.kinds:
            if kind.version == version and rest and rest[0] == kind.plural:
                return kind, rest[1] if len(rest) > 1 else ""
        raise Refusal(404, f"the server could not find the requested resource {path}")

    def _list(self, kind: Kind, path: str, query: Mapping[str, list[str]]) -> Object:
        chosen = dict(each.split("=") for each in query.get("labelSelector", [""])[0].split(",") if each)
        found = [one for key, one in self.objects.items() if key.rpartition("/")[0] == path]
        found = [one for one in found if chosen.items() <= (one["metadata"].get("labels") or {}).items()]
        return {"kind": f"{kind.name}List", "apiVersion": kind.version, "metadata": {}, "items": found}

    def _store(self, path: str, made: Object, known: Object | None) -> Object:
        made = json.loads(json.dumps(made))
        meta, number = made["metadata"], str(next(self._numbers))
        if known is not None:
            there = known["metadata"]
            if meta.get("resourceVersion", there["resourceVersion"]) != there["resourceVersion"]:
                raise Refusal(409, f"{path}: the object has been modified")
            if (
                made.get("spec", {}).get("selector") != known.get("spec", {}).get("selector")
                and made["kind"] != "Service"
            ):
                raise Refusal(422, f"{path}: spec.selector is immutable")
            meta |= {"uid": there["uid"], "creationTimestamp": there["creationTimestamp"]}
        else:
            meta |= {"uid": f"00000000-0000-4000-8000-{int(number):012}", "creationTimestamp": "2026-01-01T00:00:00Z"}
        meta["resourceVersion"] = number
        if "/namespaces/" in path:
            meta["namespace"] = path.partition("/namespaces/")[2].partition("/")[0]
        self.objects[path] = made
        return made

    def _remove(self, path: str) -> Object:
        gone = self.objects.pop(path)
        for each in list(self._owned(gone["metadata"]["uid"])):
            self._remove(each)
        return gone

    def _owned(self, uid: str) -> Iterator[str]:
        for path, one in self.objects.items():
            if any(owner["uid"] == uid for owner in one["metadata"].get("ownerReferences") or ()):
                yield path

    # What there is

    def _discovery(self, path: str) -> Object | None:
        match path.strip("/").split("/"):
            case ["version"]:
                major, minor = self.version.split(".")
                return {"major": major, "minor": minor, "gitVersion": f"v{self.version}.0"}
            case ["api"]:
                return {"kind": "APIVersions", "versions": ["v1"]}
            case ["apis"]:
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [*self._groups()]}
            case ["api", version] | ["apis", *version]:
                return self._resources(version if isinstance(version, str) else "/".join(version))
        return None

    def _groups(self) -> Iterator[Object]:
        for version in dict.fromkeys(kind.version for kind in self.kinds if "/" in kind.version):
            about = {"groupVersion": version, "version": version.partition("/")[2]}
            yield {"name": version.partition("/")[0], "versions": [about], "preferredVersion": about}

    def _resources(self, version: str) -> Object | None:
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        found = [
            {"name": kind.plural, "singularName": kind.name.lower(), "namespaced": kind.namespaced, "kind": kind.name, "verbs": verbs}
            for kind in self.kinds
            if kind.version == version
        ]  # fmt: skip
        return {"kind": "APIResourceList", "groupVersion": version, "resources": found} if found else None


def _merged(into: Object, patch: Object) -> Object:
    """A JSON merge patch."""
    made = dict(into)
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        elif isinstance(value, dict) and isinstance(made.get(key), dict):
            made[key] = _merged(made[key], value)
        else:
            made[key] = value
    return made
