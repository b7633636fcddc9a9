"""Values for tests to render, and accessors for the rendered objects."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from tests.kube.api import Api, Object
from tests.kube.helm import Helm, Values, merge_values, read_overlay
from tests.kube.serve import Door

LLM = {"family": "qwen2_5_vl", "checkpoint": "Qwen/Qwen2.5-VL-7B-Instruct"}
DECLARED = {
    "models": {
        "qwen": {
            **LLM,
            "options": {
                "E": {"components": ["vision"], "service": "encoder"},
                "L": {"components": ["thinker"], "service": "llm", "replicas": 2, "gpus": 2},
            },
            "paths": [{"options": ["E", "L"]}],
        }
    }
}
GROUP = {"qwen/L": {"service": "llm", "group": {"size": 2, "command": ["python", "-m", "worker"]}}}


def make_values(*overlays: str, **more: Any) -> Values:
    """Return the values of overlays and others; ``a__b=1`` is ``a: {b: 1}``."""
    whole = read_overlay(*overlays)
    for path, value in more.items():
        for key in reversed(path.split("__")):
            value = {key: value}
        merge_values(whole, deepcopy(value))
    return whole


#: Every way in which the chart may be installed that differs in what it makes.
SHAPES: dict[str, Values] = {
    "as_it_is": {},
    "cpu": make_values("values-cpu.yaml"),
    "gpu": make_values("values-gpu.yaml", models=DECLARED),
    "one_node": make_values("values-gpu.yaml", models=DECLARED, placement__oneNode="required"),
    "many_nodes": make_values(
        "values-gpu.yaml",
        models=DECLARED,
        placement__oneNode="off",
        gateway__media__accessMode="ReadWriteMany",
        checkpoints__accessMode="ReadOnlyMany",
        sidecar__tls__secret="nodes-tls",
    ),
    "own_servers": make_values(
        nats={"enabled": False, "url": "tls://bus.example.com:4333", "tls": {"caSecret": "bus-ca"}},
        valkey={"enabled": False, "url": "rediss://:$(STORE_PASSWORD)@store.example.com:6380/0"},
        credentials={"existingSecret": "mine"},
        models={"existingConfigMap": "my-models"},
    ),
    "available": make_values(
        "values-gpu.yaml", models=DECLARED, nats__replicas=3, valkey__replicas=2, networkPolicy__enabled=True
    ),
    "own_sentinels": make_values(
        nats={"enabled": False, "url": "nats://a.example.com:4222,nats://b.example.com:4222"},
        valkey={"enabled": False, "url": "redis+sentinel://:$(STORE_PASSWORD)@a.example.com:26379/omnibus/0"},
    ),
    "keda": make_values(
        models=DECLARED, executors={"scaling": "keda", "keda": {"prometheus": "http://prometheus:9090"}}
    ),
    "hpa": make_values(models=DECLARED, executors={"scaling": "hpa"}),
    "fixed": make_values("values-cpu.yaml", executors__scaling="none"),
    "groups": make_values("values-gpu.yaml", models=DECLARED, executors__options=GROUP),
    "fixed_groups": make_values(models=DECLARED, executors={"scaling": "none", "options": GROUP}),
    "everything": make_values(
        "values-gpu.yaml",
        models={**DECLARED, "gpus": {"H100": {"count": 8, "memory_gb": 80}}, "profiles": {"qwen.json": {"v": 1}}},
        image={"repository": "registry.example.com/omnibus", "tag": "v1", "pullSecrets": [{"name": "pull"}]},
        gateway={
            "autoscaling": {"enabled": True},
            "ingress": {"host": "api.example.com", "className": "nginx", "tlsSecret": "tls"},
            "apps": {"claim": "apps"},
            "pod": {"priorityClassName": "high", "nodeSelector": {"pool": "a"}},
        },
        planner__replicas=2,
        checkpoints={"download": True, "tokenSecret": {"name": "hub", "key": "token"}},
        metrics={"serviceMonitor": True, "labels": {"release": "prometheus"}},
        networkPolicy__clientsFrom=[{"namespaceSelector": {"matchLabels": {"edge": "true"}}}],
        settings={"bus": {"record_bytes": 5 << 30}, "service": {"log_level": "DEBUG"}},
        env={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://otel:4318"},
    ),
}


class ChartSite(NamedTuple):
    url: str
    door: Door
    helm: Helm

    @property
    def api(self) -> Api:
        return self.door.api


class Renders:
    """The chart's objects for given values, rendered once each."""

    def __init__(self, site: ChartSite) -> None:
        self._site = site
        self._known: dict[str, list[Object]] = {}

    def __call__(self, values: Values) -> list[Object]:
        key = json.dumps(values, sort_keys=True)
        if key not in self._known:
            try:
                self._known[key] = asyncio.run(self._site.helm.install("om", values))
            finally:
                self._site.api.objects.clear()
        return deepcopy(self._known[key])


def select_kind(objects: Sequence[Object], kind: str) -> dict[str, Object]:
    """The objects of ``kind`` by name."""
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def read_templates(objects: Sequence[Object]) -> dict[str, Object]:
    """The planner's executor templates, by service or option."""
    maps = select_kind(objects, "ConfigMap").values()
    return next((json.loads(each["data"]["templates.json"]) for each in maps if "templates.json" in each["data"]), {})


def list_objects(objects: Sequence[Object]) -> list[Object]:
    """Return all objects, and the workloads that the planner builds from templates."""
    all_objects = list(objects)
    for name, template in read_templates(objects).items():
        template["metadata"]["name"] = name.replace("/", "-").lower()
        if template["kind"] == "Deployment":
            template["spec"]["selector"] = {"matchLabels": {"a": "b"}}
        all_objects.append(template)
    return all_objects


def iterate_pods(objects: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    """Every pod template, with the name of its part."""
    for each in list_objects(objects):
        spec = each.get("spec") or {}
        group = spec.get("leaderWorkerTemplate", {})
        for template in (spec.get("template"), group.get("leaderTemplate"), group.get("workerTemplate")):
            if template is not None:
                yield template["metadata"]["labels"]["app.kubernetes.io/component"], template


def read_env(pod: Object) -> dict[str, Any]:
    """Return the first container's variables; those with a ``valueFrom`` unresolved."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in pod["spec"]["containers"][0]["env"]}
