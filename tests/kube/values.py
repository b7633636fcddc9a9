"""Generate parts of the chart from code: ``python -m tests.kube.values``.

It writes parts of ``values.schema.json``. They are the settings that a user may set, and the fields of a declared
model. Settings that the chart sets itself are left out. It also writes the users of the bus.
"""

import json
from collections.abc import Iterable
from typing import Any

from omnibus import settings
from omnibus.bus import permissions
from omnibus.executor import settings as executor_settings
from omnibus.plan import DeploymentOption
from omnibus_planner.declared.model import DeclaredModel
from tests.kube.helm import CHART

SCHEMA, USERS = CHART / "values.schema.json", CHART / "files" / "nats-users.conf"
#: Set by the chart, from other values.
CHARTS = {
    "bus": {"url", "user", "password", "tls_ca", "tls_cert", "tls_key"},
    "store": {"url", "secret", "tls_ca", "tls_cert", "tls_key"},
    "sidecar": {"socket", "node", "host", "port", "advertise", "secret_file", "tls_ca", "tls_cert", "tls_key"},
    "gateway": {"host", "port", "media_dir", "apps_dir", "admin_token", "salt", "tls_cert", "tls_key", "keys_file"},
    "planner": {"models", "reconcile"},
    "kubernetes": {"url", "account", "namespace", "template", "release", "owner", "lease"},
    "executor": {
        "id", "model", "family", "checkpoint", "download", "option", "origin", "components", "tasks", "source", "context",
        "apps_dir",
    },
    "service": {"metrics_port", "metrics_dir", "metrics_host", "drain"},
}  # fmt: skip


def list_settable() -> dict[str, list[str]]:
    """Fields of each area that values may set."""
    fields = {}
    modules = (settings.__name__, executor_settings.__name__)
    areas = {each for each in settings.Settings.__subclasses__() if each.__module__ in modules}
    services = areas - {settings.UpSettings}  # of `omnibus up` alone
    for area in sorted(services, key=lambda each: each.area):
        name = area.area.lower()
        fields[name] = sorted(set(area.__struct_fields__) - CHARTS.get(name, set()))
    return fields


def make_definitions() -> dict[str, Any]:
    """Definitions of the schema that come from code."""
    value = {"type": ["string", "number", "boolean"]}
    areas = {area: _object_schema(dict.fromkeys(fields, value)) for area, fields in list_settable().items()}
    definitions = json.loads(SCHEMA.read_text())["$defs"]
    option = definitions.get("option", {}).get("properties", {})
    model = definitions.get("model", {}).get("properties", {})
    return {
        "settings": _object_schema(areas),
        "option": _object_schema(_keep_descriptions(option, DeploymentOption.__struct_fields__)),
        "model": {
            **_object_schema(_keep_descriptions(model, DeclaredModel.__struct_fields__)),
            "required": ["family", "checkpoint"],
        },
    }


def _keep_descriptions(descriptions: dict[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Descriptions of fields in the current schema; new fields have none."""
    return {field: descriptions.get(field, {}) for field in fields}


def _object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def main() -> None:
    whole = json.loads(SCHEMA.read_text())
    whole["$defs"] |= make_definitions()
    SCHEMA.write_text(json.dumps(whole, indent=1) + "\n")
    USERS.write_text(permissions.server_config())


if __name__ == "__main__":
    main()
