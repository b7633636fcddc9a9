"""``omnibus nats-config``: prints the users and permissions of Omnibus for a NATS server."""

import argparse
import json
from pathlib import Path

import msgspec

from omnibus.bus import permissions
from omnibus.bus.subjects import task_name
from omnibus.errors import BadRequest
from omnibus.families import catalog


class _DeclaredModel(msgspec.Struct, frozen=True):
    """Declared model: the fields that determine the names of unit tasks."""

    family: str
    tasks: dict[str, str] | None = None
    shares: dict[str, str] = {}


class _Declarations(msgspec.Struct, frozen=True):
    models: dict[str, _DeclaredModel]


async def nats_config(options: argparse.Namespace) -> int:
    """Print the configuration, or with ``--json`` the permissions of each user."""
    models = unit_tasks(options.models) if options.models else {}
    if options.json:
        users = {
            user: {"publish": may.publish, "subscribe": may.subscribe}
            for user, may in permissions.permissions_by_user(models, options.nodes).items()
        }
        print(json.dumps(users, indent=2))
    else:
        print(
            permissions.server_config(
                port=options.port, store=options.store_dir, tls=options.tls, models=models, nodes=options.nodes
            ),
            end="",
        )
    return 0


def unit_tasks(path: str) -> dict[str, list[str]]:
    """Return the unit tasks of each model declared in ``path``.

    A shared component belongs to the model that declares it. Raises ``BadRequest`` that names the file.
    """
    try:
        declarations = msgspec.json.decode(Path(path).read_bytes(), type=_Declarations)
        models = {name: _tasks_of(name, model) for name, model in declarations.models.items()}
    except (OSError, msgspec.MsgspecError) as error:
        raise BadRequest(f"--models {path}: {error}") from error
    except BadRequest as error:
        raise BadRequest(f"--models {path}: {error.message}") from error
    users = [permissions.password_variable(permissions.model_user(name)) for name in models]
    if len(set(users)) != len(users):
        raise BadRequest(
            f"--models {path}: two names of models must differ in letters or digits, not in punctuation alone"
        )
    return models


def _tasks_of(name: str, model: _DeclaredModel) -> list[str]:
    kinds = catalog.find_family(model.family)["tasks"] | (model.tasks or {})
    return [task_name(kind, name, component) for component, kind in kinds.items() if component not in model.shares]
