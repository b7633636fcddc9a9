"""All settings: their areas, units and descriptions."""

from collections.abc import Mapping

import msgspec

from omnibus import settings
from omnibus.environment import Settings, describe_unknown, is_foreign, read_settings, variable_name
from omnibus.errors import BadRequest
from omnibus.executor.settings import ExecutorSettings, LlamaCppSettings, VllmSettings
from omnibus.settings import UpSettings

AREAS: list[type[Settings]] = [
    settings.ServiceSettings,
    settings.GatewaySettings,
    settings.PlannerSettings,
    settings.KubernetesSettings,
    ExecutorSettings,
    LlamaCppSettings,
    VllmSettings,
    settings.SidecarSettings,
    settings.BusSettings,
    settings.StoreSettings,
    UpSettings,
]
#: Variables that are read outside of an area, and their meanings.
OTHER_VARIABLES = {
    "OMNIBUS_RUN": "Name of the run of `omnibus up` that commands talk to, as `--run`; see `omnibus ps`.",
    "OMNIBUS_CACHE": "Directory of checkpoints that are built here; empty: `~/.cache/omnibus`.",
}


def all_variables() -> list[str]:
    """Return the environment variables of all areas."""
    return [variable_name(area, field.name) for area in AREAS for field in msgspec.structs.fields(area)]


def check_environment(environ: Mapping[str, str]) -> None:
    """Raise ``BadRequest`` for an unknown variable or an invalid value. A variable is checked if it begins as settings
    do."""
    variables = [*all_variables(), *OTHER_VARIABLES]
    for name in environ:
        if name.startswith("OMNIBUS_") and name not in variables and not _is_free(name):
            raise BadRequest(describe_unknown(name, variables))
    for area in AREAS:
        read_settings(area, environ)


def _is_free(name: str) -> bool:
    """Return whether others define ``name``: passwords of users of NATS, tests, other programs."""
    return is_foreign(name) or name.startswith(("OMNIBUS_NATS_", "OMNIBUS_TEST_"))
