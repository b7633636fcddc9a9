"""Workloads of a cluster from the operator's templates.

The file holds a JSON object: by service, or under ``default`` for all others, a Deployment or StatefulSet that runs
one executor in its first container. Names, replicas, selector, what tells an executor who it is, and its GPUs are
filled in, and in a node selector ``{gpu}`` becomes the type of the GPUs; executors without one have no such selector.
All else, such as image and volumes, stays as it is.
"""

import json
import re
from collections.abc import Mapping
from copy import deepcopy
from hashlib import blake2b
from pathlib import Path
from typing import Any

from omnibus.errors import BadRequest
from omnibus.wanted import ID, Kind, Wanted
from services.planner.reconcile.backend import Running

KINDS = ("Deployment", "StatefulSet")
DEFAULT = "default"
GPU = "nvidia.com/gpu"
#: What stands for the type of GPUs in a node selector.
TYPE = "{gpu}"
#: Labels and annotations of ours begin with this.
OURS = "omnibus/"
MANAGED = {"app.kubernetes.io/managed-by": "omnibus-planner"}

_UNFIT = re.compile(r"[^a-z0-9]+")
#: Characters of a name before its hash: pods get a tail of their own, and 63 are allowed.
_NAMED = 36

Manifest = dict[str, Any]


class Templates:
    """The operator's templates, checked. Raises ``BadRequest`` that names the file and the fault."""

    def __init__(self, path: str) -> None:
        try:
            found = json.loads(Path(path).read_text())
        except OSError as error:
            raise BadRequest(f"OMNIBUS_KUBERNETES_TEMPLATE={path!r} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise BadRequest(f"{path}: {error}") from error
        if not isinstance(found, dict) or not found:
            raise BadRequest(f"{path} must be a JSON object of Deployments by service, or under {DEFAULT!r}")
        for service, manifest in found.items():
            _check(manifest, f"{path}: {service}")
        self._manifests: dict[str, Manifest] = found
        self._path = path

    def of(self, service: str) -> Manifest:
        manifest = self._manifests.get(service) or self._manifests.get(DEFAULT)
        if manifest is None:
            raise BadRequest(f"{self._path} has no template for {service!r} and none under {DEFAULT!r}")
        return manifest


def mark(template: Manifest, wanted: Wanted) -> str:
    """What differs when the executors have to be replaced; not for another number of them."""
    asked = [wanted.gpu] if wanted.gpu and _selects(template["spec"]["template"]["spec"]) else []
    told = json.dumps([template, wanted.env, wanted.gpus, *asked], sort_keys=True)
    return blake2b(told.encode(), digest_size=8).hexdigest()


def name(release: str, kind: Kind) -> str:
    """The workload's name: the same for the same kind, another one for any other."""
    digest = blake2b("\0".join([release, *kind]).encode(), digest_size=4).hexdigest()
    plain = _UNFIT.sub("-", f"{release}-{kind.model}-{kind.option}".lower()).strip("-")[:_NAMED].strip("-")
    return f"{plain}-{digest}"


def workload(template: Manifest, release: str, wanted: Wanted) -> Manifest:
    """The manifest of ``wanted``."""
    made = deepcopy(template)
    called = name(release, wanted.kind)
    selector = {f"{OURS}release": release, f"{OURS}executor": called}
    about = {**dict(zip(_ABOUT, wanted.kind, strict=True)), f"{OURS}mark": mark(template, wanted)}
    meta = made.setdefault("metadata", {})
    meta["name"] = called
    _add(meta, "labels", {**MANAGED, **selector})
    _add(meta, "annotations", about)
    made["spec"] |= {"replicas": wanted.replicas, "selector": {"matchLabels": selector}}
    pod = made["spec"]["template"]
    _add(pod.setdefault("metadata", {}), "labels", selector)
    _tell(pod["spec"]["containers"][0], wanted)
    _place(pod["spec"], wanted.gpu if wanted.gpus else "")
    return made


def running(found: Manifest) -> Running | None:
    """A workload of the cluster; None for one that is not ours."""
    meta = found.get("metadata", {})
    about = meta.get("annotations") or {}
    if not all(key in about for key in (*_ABOUT, f"{OURS}mark")):
        return None
    kind = Kind(*(about[key] for key in _ABOUT))
    return Running(str(meta["name"]), kind, int(found["spec"].get("replicas", 1)), about[f"{OURS}mark"])


_ABOUT = tuple(f"{OURS}{field}" for field in Kind._fields)


def _add(meta: Manifest, field: str, values: Mapping[str, str]) -> None:
    meta[field] = {**(meta.get(field) or {}), **values}


def _tell(container: Manifest, wanted: Wanted) -> None:
    told: dict[str, Manifest] = {name: {"name": name, "value": _plain(value)} for name, value in wanted.env.items()}
    told[ID] = {"name": ID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    container["env"] = [each for each in container.get("env") or [] if each["name"] not in told] + list(told.values())
    if wanted.gpus:
        resources = container.setdefault("resources", {})
        resources["limits"] = {**(resources.get("limits") or {}), GPU: str(wanted.gpus)}


def _selects(pod: Manifest) -> bool:
    return any(TYPE in value for value in (pod.get("nodeSelector") or {}).values())


def _place(pod: Manifest, gpu: str) -> None:
    """Fill in the GPU type where the template asks for it."""
    if _selects(pod):
        chosen = {key: value for key, value in pod["nodeSelector"].items() if gpu or TYPE not in value}
        pod["nodeSelector"] = {key: value.replace(TYPE, gpu) for key, value in chosen.items()}


def _plain(value: str) -> str:
    """A value that the cluster takes as it is: it would put other variables in for ``$(NAME)``."""
    return value.replace("$", "$$")


def _check(manifest: Any, where: str) -> None:
    try:
        good = manifest["kind"] in KINDS and bool(manifest["spec"]["template"]["spec"]["containers"][0])
    except (KeyError, IndexError, TypeError):
        good = False
    if not good:
        raise BadRequest(f"{where} must be a {' or '.join(KINDS)} with a container in spec.template.spec.containers")
