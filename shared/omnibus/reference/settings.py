"""All settings: their areas, units, and what is said of them where they are defined."""

from collections.abc import Mapping

import msgspec

from omnibus import settings
from omnibus.environment import Settings, describe_unknown, is_foreign, read_settings, variable_name
from omnibus.errors import BadRequest
from omnibus.executor.settings import ExecutorSettings, VllmSettings
from omnibus.settings import UpSettings

AREAS: list[type[Settings]] = [
    settings.ServiceSettings,
    settings.GatewaySettings,
    settings.PlannerSettings,
    settings.KubernetesSettings,
    ExecutorSettings,
    VllmSettings,
    settings.SidecarSettings,
    settings.BusSettings,
    settings.StoreSettings,
    UpSettings,
]
#: Variables that are read outside of an area, and what each is.
OTHER_VARIABLES = {
    "OMNIBUS_RUN": "Name of the run of `omnibus up` that commands talk to, as `--run`; see `omnibus ps`.",
    "OMNIBUS_CACHE": "Directory of checkpoints that are built here; empty: `~/.cache/omnibus`.",
}


def all_variables() -> list[str]:
    """Return the environment variables of all areas."""
    return [variable_name(area, field.name) for area in AREAS for field in msgspec.structs.fields(area)]


def check_environment(environ: Mapping[str, str]) -> None:
    """Raise ``BadRequest`` for a variable that begins as settings do and is none, or whose value is wrong."""
    known = [*all_variables(), *OTHER_VARIABLES]
    for name in environ:
        if name.startswith("OMNIBUS_") and name not in known and not _is_free(name):
            raise BadRequest(describe_unknown(name, known))
    for area in AREAS:
        read_settings(area, environ)


def _is_free(name: str) -> bool:
    """Return whether ``name`` is for others to choose: passwords of users of NATS, tests, other programs."""
    return is_foreign(name) or name.startswith(("OMNIBUS_NATS_", "OMNIBUS_TEST_"))
