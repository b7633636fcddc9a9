"""Workloads of a cluster from the operator's templates.

The file is a JSON object by ``model/option``, by service, or under ``default`` for all others. A template is a
Deployment or StatefulSet that runs one executor in its first container, or a LeaderWorkerSet whose leader does. The
planner fills in names, replicas, selector, labels, an executor's identity, and its GPUs.

In a node selector ``{gpu}`` becomes the type of the GPUs; executors without GPUs have no such selector. In an affinity
``{model}`` becomes the value of the label ``omnibus/model``, to keep executors near others of their model. The pods of
a LeaderWorkerSet have equal shares of an executor's GPUs. All else, such as image and volumes, stays as it is.
"""

import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from hashlib import blake2b
from pathlib import Path
from typing import Any

from omnibus.cluster.presence import CELL, ID, TENSOR_PARALLEL, DesiredExecutors, ExecutorKind
from omnibus.errors import BadRequest
from omnibus_planner.reconcile.backend import RunningWorkload

GROUPS = "LeaderWorkerSet"
KINDS = ("Deployment", "StatefulSet", GROUPS)
DEFAULT = "default"
GPU = "nvidia.com/gpu"
#: Placeholder of the type of GPUs in a node selector.
GPU_PLACEHOLDER = "{gpu}"
#: Placeholder of the model's label in an affinity.
MODEL_PLACEHOLDER = "{model}"
#: Prefix of our labels and annotations.
LABEL_PREFIX = "omnibus/"
MANAGED = {"app.kubernetes.io/managed-by": "omnibus-planner"}
EPOCH = f"{LABEL_PREFIX}epoch"
#: Device of executors with GPUs, unless the template sets it.
DEVICE = "OMNIBUS_EXECUTOR_DEVICE"

_INVALID_NAME_CHARS = re.compile(r"[^a-z0-9]+")
_INVALID_LABEL_CHARS = re.compile(r"[^A-Za-z0-9._-]+")
#: Most characters of a name before its hash: names of pods have a suffix, and 63 are allowed.
_MAX_NAME_CHARS = 36
#: Most characters of a label's value.
_MAX_LABEL_CHARS = 63

Manifest = dict[str, Any]


class Templates:
    """The operator's templates, checked. Raises ``BadRequest`` with the file and its fault."""

    def __init__(self, path: str) -> None:
        try:
            manifests = json.loads(Path(path).read_text())
        except OSError as error:
            raise BadRequest(f"OMNIBUS_KUBERNETES_TEMPLATE={path!r} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise BadRequest(f"{path}: {error}") from error
        if not isinstance(manifests, dict) or not manifests:
            raise BadRequest(f"{path} must be a JSON object of Deployments by service, or under {DEFAULT!r}")
        for service, manifest in manifests.items():
            _check_template(manifest, f"{path}: {service}")
        self._manifests: dict[str, Manifest] = manifests
        self._path = path

    def get_template(self, executors: DesiredExecutors) -> Manifest:
        """Return the template of these executors. Raises ``BadRequest`` if there is none, or it does not fit."""
        kind, service = executors.kind, executors.service
        choices = (self._manifests.get(each) for each in (f"{kind.model}/{kind.option}", service, DEFAULT))
        manifest = next((each for each in choices if each is not None), None)
        if manifest is None:
            raise BadRequest(f"{self._path} has no template for {service!r} and none under {DEFAULT!r}")
        if executors.gpus % _group_size(manifest):
            raise BadRequest(
                f"{kind}: {executors.gpus} GPUs cannot be divided among groups of {_group_size(manifest)} pods"
            )
        return manifest


def workload_hash(template: Manifest, executors: DesiredExecutors) -> str:
    """Return a hash that changes if executors must be replaced; their number does not change it."""
    gpu_types = (
        [executors.gpu] if executors.gpu and any(_selects_gpu(pod["spec"]) for pod in _pod_templates(template)) else []
    )
    hash_input = json.dumps([template, executors.env, executors.gpus, *gpu_types], sort_keys=True)
    return blake2b(hash_input.encode(), digest_size=8).hexdigest()


def workload_name(release: str, kind: ExecutorKind) -> str:
    """Return the workload's name, which is unique to its kind."""
    digest = blake2b("\0".join([release, *kind]).encode(), digest_size=4).hexdigest()
    plain = (
        _INVALID_NAME_CHARS.sub("-", f"{release}-{kind.model}-{kind.option}".lower())
        .strip("-")[:_MAX_NAME_CHARS]
        .strip("-")
    )
    return f"{plain}-{digest}"


def build_workload(
    template: Manifest, release: str, executors: DesiredExecutors, owner: Manifest | None = None
) -> Manifest:
    """Return the manifest of ``executors``, which is deleted with its ``owner``."""
    manifest = deepcopy(template)
    full_name = workload_name(release, executors.kind)
    selector = {f"{LABEL_PREFIX}release": release, f"{LABEL_PREFIX}executor": full_name}
    model_labels = {
        f"{LABEL_PREFIX}model": _label_value(executors.kind.model),
        f"{LABEL_PREFIX}option": _label_value(executors.kind.option),
    }
    if cell := executors.env.get(CELL, ""):
        model_labels[f"{LABEL_PREFIX}cell"] = _label_value(cell)
    about = {
        **dict(zip(_KIND_ANNOTATIONS, executors.kind, strict=True)),
        f"{LABEL_PREFIX}mark": workload_hash(template, executors),
    }
    meta = manifest.setdefault("metadata", {})
    meta["name"] = full_name
    if owner is not None:
        meta["ownerReferences"] = [owner]
    _add_metadata(meta, "labels", {**MANAGED, **selector, **model_labels, EPOCH: str(executors.epoch)})
    _add_metadata(meta, "annotations", about)
    manifest["spec"]["replicas"] = executors.replicas
    if manifest["kind"] != GROUPS:
        manifest["spec"]["selector"] = {"matchLabels": selector}
    pods = _pod_templates(manifest)
    for pod in pods:
        _add_metadata(pod.setdefault("metadata", {}), "labels", {**selector, **model_labels})
        _set_gpu_limit(pod["spec"]["containers"][0], executors.gpus // _group_size(manifest))
        _set_node_selector(pod["spec"], executors.gpu if executors.gpus else "")
        if "affinity" in pod["spec"]:
            pod["spec"]["affinity"] = _fill_model(pod["spec"]["affinity"], model_labels[f"{LABEL_PREFIX}model"])
        if executors.nodes:
            _prefer_nodes(pod["spec"], sorted(executors.nodes))
        if f"{LABEL_PREFIX}cell" in model_labels:
            _prefer_machine_of_cell(pod["spec"], {**selector, **model_labels})
    _set_environment(pods[0]["spec"]["containers"][0], executors)
    return manifest


def scale_patch(executors: DesiredExecutors) -> Manifest:
    """Return the merge patch for another number of executors, or another plan."""
    return {"metadata": {"labels": {EPOCH: str(executors.epoch)}}, "spec": {"replicas": executors.replicas}}


def parse_workload(manifest: Manifest) -> RunningWorkload | None:
    """Parse a workload of the cluster; None if it is not ours."""
    meta = manifest.get("metadata", {})
    about = meta.get("annotations") or {}
    if not all(key in about for key in (*_KIND_ANNOTATIONS, f"{LABEL_PREFIX}mark")):
        return None
    kind = ExecutorKind(*(about[key] for key in _KIND_ANNOTATIONS))
    epoch = str((meta.get("labels") or {}).get(EPOCH, ""))
    replicas = int(manifest["spec"].get("replicas", 1))
    return RunningWorkload(
        str(meta["name"]), kind, replicas, about[f"{LABEL_PREFIX}mark"], int(epoch) if epoch.isdigit() else 0
    )


_KIND_ANNOTATIONS = tuple(f"{LABEL_PREFIX}{field}" for field in ExecutorKind._fields)


def _add_metadata(meta: Manifest, field: str, values: Mapping[str, str]) -> None:
    meta[field] = {**(meta.get(field) or {}), **values}


def _label_value(text: str) -> str:
    """Return ``text`` as the value of a label, which may be ambiguous."""
    return _INVALID_LABEL_CHARS.sub("-", text)[:_MAX_LABEL_CHARS].strip("-._")


def _set_environment(container: Manifest, executors: DesiredExecutors) -> None:
    variables: dict[str, Manifest] = {
        name: {"name": name, "value": _escape_value(value)} for name, value in executors.env.items()
    }
    variables[ID] = {"name": ID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    kept_entries = [each for each in container.get("env") or [] if each["name"] not in variables]
    for name, value in _default_environment(executors).items():
        if name not in variables and all(each["name"] != name for each in kept_entries):
            variables[name] = {"name": name, "value": value}
    container["env"] = kept_entries + list(variables.values())


def _default_environment(executors: DesiredExecutors) -> dict[str, str]:
    return {DEVICE: "cuda", TENSOR_PARALLEL: str(executors.tensor_parallel)} if executors.gpus else {}


def _set_gpu_limit(container: Manifest, gpus: int) -> None:
    if gpus:
        resources = container.setdefault("resources", {})
        resources["limits"] = {**(resources.get("limits") or {}), GPU: str(gpus)}


def _pod_templates(manifest: Manifest) -> list[Manifest]:
    """Return the pod templates, that of the executor first."""
    if manifest["kind"] != GROUPS:
        return [manifest["spec"]["template"]]
    group = manifest["spec"]["leaderWorkerTemplate"]
    return [group["leaderTemplate"], group["workerTemplate"]]


def _group_size(manifest: Manifest) -> int:
    """Return the number of pods of one executor."""
    return int(manifest["spec"]["leaderWorkerTemplate"].get("size", 1)) if manifest["kind"] == GROUPS else 1


def _selects_gpu(pod: Manifest) -> bool:
    return any(GPU_PLACEHOLDER in value for value in (pod.get("nodeSelector") or {}).values())


def _set_node_selector(pod: Manifest, gpu: str) -> None:
    """Fill in the GPU type if the template has the placeholder."""
    if _selects_gpu(pod):
        selectors = {key: value for key, value in pod["nodeSelector"].items() if gpu or GPU_PLACEHOLDER not in value}
        pod["nodeSelector"] = {key: value.replace(GPU_PLACEHOLDER, gpu) for key, value in selectors.items()}


def _fill_model(template: Any, model: str) -> Any:
    """Fill in the model's label if the template has the placeholder."""
    if isinstance(template, dict):
        return {key: _fill_model(value, model) for key, value in template.items()}
    if isinstance(template, list):
        return [_fill_model(value, model) for value in template]
    return template.replace(MODEL_PLACEHOLDER, model) if isinstance(template, str) else template


def _prefer_nodes(pod: Manifest, nodes: Sequence[str]) -> None:
    """Prefer the nodes that the plan chose. Preferences of the template come after this one."""
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}]}
    near = pod.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    affinity_field = "preferredDuringSchedulingIgnoredDuringExecution"
    near[affinity_field] = [*(near.get(affinity_field) or []), {"weight": 100, "preference": term}]


def _prefer_machine_of_cell(pod: Manifest, labels: Mapping[str, str]) -> None:
    """Prefer one machine for executors of one cell.

    This goes before the template's preferences.
    """
    names = [f"{LABEL_PREFIX}{name}" for name in ("release", "model", "cell")]
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {name: labels[name] for name in names}},
    }
    near = pod.setdefault("affinity", {}).setdefault("podAffinity", {})
    affinity_field = "preferredDuringSchedulingIgnoredDuringExecution"
    near[affinity_field] = [*(near.get(affinity_field) or []), {"weight": 100, "podAffinityTerm": term}]


def _escape_value(value: str) -> str:
    """Escape a value so that the cluster does not replace ``$(NAME)``."""
    return value.replace("$", "$$")


def _check_template(manifest: Any, where: str) -> None:
    try:
        good = manifest["kind"] in KINDS and all(pod["spec"]["containers"][0] for pod in _pod_templates(manifest))
        good = good and _group_size(manifest) > 0
    except (KeyError, IndexError, TypeError, ValueError):
        good = False
    if not good:
        raise BadRequest(
            f"{where} must be a {' or '.join(KINDS[:2])} with a container in spec.template.spec.containers, or a "
            f"{GROUPS} with leaderTemplate and workerTemplate in spec.leaderWorkerTemplate"
        )
