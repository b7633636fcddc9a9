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
    def plural_name(self) -> str:
        name = self.name.lower()
        return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"

    def path(self, namespace: str) -> str:
        root = f"/api/{self.version}" if "/" not in self.version else f"/apis/{self.version}"
        return f"{root}/namespaces/{namespace}/{self.plural_name}" if self.namespaced else f"{root}/{self.plural_name}"


class Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """The API server.

    ``objects`` by path; ``asked`` contains every request except discovery.
    """

    def __init__(self, extra_kinds: Mapping[str, str] | None = None, version: str = "1.33") -> None:
        group_names = {**BUILT_IN, **(ADDED if extra_kinds is None else extra_kinds)}
        self.kinds = [
            Kind(group, name.rstrip("/"), not name.endswith("/"))
            for group, names in group_names.items()
            for name in names.split()
        ]
        self.version = version
        self.objects: dict[str, Object] = {}
        self.asked: list[tuple[str, str]] = []
        self._numbers = itertools.count(1)

    def of(self, kind: str) -> dict[str, Object]:
        """All objects of ``kind`` by name."""
        matches = (one for one in self.objects.values() if one["kind"] == kind)
        return {one["metadata"]["name"]: one for one in matches}

    @property
    def changes(self) -> list[tuple[str, str]]:
        """Method and plural of each change to workloads."""
        kinds = {kind.path("ns"): kind.plural_name for kind in self.kinds if kind.name in WORKLOADS}
        requests = [(method, kinds.get(path) or kinds.get(path.rpartition("/")[0])) for method, path in self.asked]
        return [(method, kind) for method, kind in requests if kind is not None and method != "GET"]

    def answer(self, method: str, path: str, query: Mapping[str, list[str]], body: Any, media: str) -> tuple[int, Any]:
        """Status and JSON of the answer."""
        try:
            document = self._answer_discovery(path)
            if document is not None:
                return 200, document
            self.asked.append((method, path))
            return self._change_object(method, path, query, body, media)
        except Refusal as refusal:
            reason = {404: "NotFound", 409: "AlreadyExists"}.get(refusal.status, "Invalid")
            fields = {"message": str(refusal), "reason": reason, "code": refusal.status, "status": "Failure"}
            return refusal.status, {"kind": "Status", "apiVersion": "v1", **fields}

    def _change_object(
        self, method: str, path: str, query: Mapping[str, list[str]], body: Any, media: str
    ) -> tuple[int, Object]:
        kind, name = self._find_kind(path)
        if method == "GET" and not name:
            return 200, self._list_objects(kind, path, query)
        new_object, current = {"apiVersion": kind.version, "kind": kind.name, **(body or {})}, self.objects.get(path)
        if method == "POST":
            path = f"{path}/{new_object['metadata']['name']}"
            if path in self.objects:
                raise Refusal(409, f"{path} already exists")
            return 201, self._store_object(path, new_object, None)
        if current is None and media == APPLY:
            return 201, self._store_object(path, new_object, None)
        if current is None:
            raise Refusal(404, f"{path} not found")
        if method == "DELETE":
            current = self._remove_object(path)
        elif method in ("PUT", "PATCH"):
            current = self._store_object(
                path, new_object if method == "PUT" or media == APPLY else _merge_patch(current, body), current
            )
        return 200, current

    def _find_kind(self, path: str) -> tuple[Kind, str]:
        """The kind of ``path`` and the name in it; an empty one is for all of them."""
        parts = path.strip("/").split("/")
        version = parts[1] if parts[0] == "api" else "/".join(parts[1:3])
        rest = parts[2 if parts[0] == "api" else 3 :]
        rest = rest[2:] if len(rest) > 2 and rest[0] == "namespaces" else rest
        for kind in self.kinds:
            if kind.version == version and rest and rest[0] == kind.plural_name:
                return kind, rest[1] if len(rest) > 1 else ""
        raise Refusal(404, f"the server could not find the requested resource {path}")

    def _list_objects(self, kind: Kind, path: str, query: Mapping[str, list[str]]) -> Object:
        labels = dict(each.split("=") for each in query.get("labelSelector", [""])[0].split(",") if each)
        matches = [one for key, one in self.objects.items() if key.rpartition("/")[0] == path]
        matches = [one for one in matches if labels.items() <= (one["metadata"].get("labels") or {}).items()]
        return {"kind": f"{kind.name}List", "apiVersion": kind.version, "metadata": {}, "items": matches}

    def _store_object(self, path: str, new_object: Object, current: Object | None) -> Object:
        new_object = json.loads(json.dumps(new_object))
        meta, number = new_object["metadata"], str(next(self._numbers))
        if current is not None:
            there = current["metadata"]
            if meta.get("resourceVersion", there["resourceVersion"]) != there["resourceVersion"]:
                raise Refusal(409, f"{path}: the object has been modified")
            if (
                new_object.get("spec", {}).get("selector") != current.get("spec", {}).get("selector")
                and new_object["kind"] != "Service"
            ):
                raise Refusal(422, f"{path}: spec.selector is immutable")
            meta |= {"uid": there["uid"], "creationTimestamp": there["creationTimestamp"]}
        else:
            meta |= {"uid": f"00000000-0000-4000-8000-{int(number):012}", "creationTimestamp": "2026-01-01T00:00:00Z"}
        meta["resourceVersion"] = number
        if "/namespaces/" in path:
            meta["namespace"] = path.partition("/namespaces/")[2].partition("/")[0]
        self.objects[path] = new_object
        return new_object

    def _remove_object(self, path: str) -> Object:
        old_object = self.objects.pop(path)
        for each in list(self._list_owned(old_object["metadata"]["uid"])):
            self._remove_object(each)
        return old_object

    def _list_owned(self, uid: str) -> Iterator[str]:
        for path, one in self.objects.items():
            if any(owner["uid"] == uid for owner in one["metadata"].get("ownerReferences") or ()):
                yield path

    # What there is

    def _answer_discovery(self, path: str) -> Object | None:
        match path.strip("/").split("/"):
            case ["version"]:
                major, minor = self.version.split(".")
                return {"major": major, "minor": minor, "gitVersion": f"v{self.version}.0"}
            case ["api"]:
                return {"kind": "APIVersions", "versions": ["v1"]}
            case ["apis"]:
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [*self._list_groups()]}
            case ["api", version] | ["apis", *version]:
                return self._list_resources(version if isinstance(version, str) else "/".join(version))
        return None

    def _list_groups(self) -> Iterator[Object]:
        for version in dict.fromkeys(kind.version for kind in self.kinds if "/" in kind.version):
            about = {"groupVersion": version, "version": version.partition("/")[2]}
            yield {"name": version.partition("/")[0], "versions": [about], "preferredVersion": about}

    def _list_resources(self, version: str) -> Object | None:
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        resources = [
            {"name": kind.plural_name, "singularName": kind.name.lower(), "namespaced": kind.namespaced, "kind": kind.name, "verbs": verbs}
            for kind in self.kinds
            if kind.version == version
        ]  # fmt: skip
        return {"kind": "APIResourceList", "groupVersion": version, "resources": resources} if resources else None


def _merge_patch(into: Object, patch: Object) -> Object:
    """A JSON merge patch."""
    result = dict(into)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _merge_patch(result[key], value)
        else:
            result[key] = value
    return result
