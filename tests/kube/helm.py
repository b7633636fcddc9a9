"""The real Helm as a library, against an ``Api`` served here."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.kube import yaml_text
from tests.kube.serve import TOKEN

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "omnibus"
Values = dict[str, Any]


class Helm:
    """Releases in ``namespace`` of the cluster at ``url``. Raises ``HelmError`` with Helm's message.

    ``home`` is Helm's data directory. The first one stays in effect, because the library reads the environment once.
    """

    def __init__(self, url: str, home: Path, namespace: str = "ns") -> None:
        for name in ("CACHE", "CONFIG", "DATA"):
            os.environ.setdefault(f"HELM_{name}_HOME", str(home / name.lower()))
        import helm_sdkpy

        self._library = helm_sdkpy
        self._config = helm_sdkpy.Configuration(namespace=namespace, kubeconfig=_make_kubeconfig(url))

    async def install(self, name: str, values: Values | None = None) -> list[Values]:
        """The objects of the release."""
        action = self._library.Install(self._config)
        return _read_objects(await action.run(name, str(CHART), values or {}, wait=False, server_side_apply=True))

    async def upgrade(self, name: str, values: Values | None = None) -> list[Values]:
        action = self._library.Upgrade(self._config)
        return _read_objects(await action.run(name, str(CHART), values or {}, wait=False, server_side_apply=True))

    async def uninstall(self, name: str) -> None:
        await self._library.Uninstall(self._config).run(name, wait=False)


def read_overlay(*names: str) -> Values:
    """The values of these files of the chart, the last one wins."""
    whole: Values = {}
    for name in names:
        merge_values(whole, yaml_text.read_document((CHART / name).read_text()))
    return whole


def merge_values(into: Values, values: Mapping[str, Any]) -> Values:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge_values(into[key], value)
        else:
            into[key] = value
    return into


def _read_objects(release: Values) -> list[Values]:
    return [each for each in yaml_text.read_all(release["manifest"]) if each]


def _make_kubeconfig(url: str) -> str:
    cluster = {"server": url, "insecure-skip-tls-verify": True}
    return yaml.safe_dump(
        {
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "here", "user": {"token": TOKEN}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
        }
    )  # fmt: skip
