"""Schemas of Kubernetes by version, which reject unknown fields.

For operators' kinds they cover the fields in use.
"""

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

VERSIONS = tuple(f"1.{minor}" for minor in range(28, 38))
ADDED = Path(__file__).with_name("added.json")
SCHEMAS = files("kubernetes_validate") / "kubernetes-json-schema"


def find_faults(manifest: dict[str, Any], version: str) -> list[str]:
    """Describe faults of an object for this version of Kubernetes; empty without faults."""
    name = f"{manifest['kind']} {manifest['metadata'].get('name', '')}"
    return [
        f"{name}: {'.'.join(map(str, error.absolute_path))}: {error.message}"
        for error in _make_validator(manifest["apiVersion"], manifest["kind"], version).iter_errors(manifest)
    ]


@cache
def _make_validator(api: str, kind: str, version: str) -> Any:
    schema = _added_schemas().get(f"{api}/{kind}") or _read_schema(version, _schema_name(api, kind))
    return Draft202012Validator(schema, registry=_make_registry(version))


def _schema_name(api: str, kind: str) -> str:
    group, _, number = api.rpartition("/")
    return "-".join(filter(None, (kind.lower(), group.partition(".")[0], number)))


@cache
def _make_registry(version: str) -> Any:
    return Resource.from_contents(_read_schema(version, "_definitions")) @ Registry()


def _read_schema(version: str, name: str) -> Any:
    return json.loads((SCHEMAS / f"v{version}.0-local-strict" / f"{name}.json").read_text())


@cache
def _added_schemas() -> dict[str, Any]:
    return json.loads(ADDED.read_text())
