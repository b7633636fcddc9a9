"""The engine of executors that run components of several models and apps in one process.

``OMNIBUS_EXECUTOR_CHECKPOINT`` lists the components: a JSON list of ``HostedPart``. Each is run by the engine of its
own model, with the settings that an executor of that model has.
"""

from collections.abc import Sequence

import msgspec

from omnibus.errors import BadRequest
from omnibus.executor.runner import Runner
from omnibus.executor.settings import ExecutorSettings
from omnibus.families import plugins
from omnibus.families.catalog import HostedPart

#: Name of ``engine`` in plans.
ENGINE = f"{__name__}:engine"

_decode = msgspec.json.Decoder(list[HostedPart]).decode


def engine(component: str, settings: ExecutorSettings) -> Runner:
    """Return the runner of ``component`` by its own engine. Raises ``BadRequest`` for one that is not listed."""
    parts = read_parts(settings.checkpoint)
    if component not in parts:
        raise BadRequest(f"OMNIBUS_EXECUTOR_CHECKPOINT has no component {component!r}; there is {', '.join(parts)}")
    part = parts[component]
    own = msgspec.structs.replace(
        settings,
        components=part.component,
        family=part.family,
        checkpoint=part.checkpoint,
        engine=part.engine,
        context=part.context,
    )
    runner: Runner = plugins.import_object(part.engine, "OMNIBUS_EXECUTOR_ENGINE")(part.component, own)
    return runner


def read_parts(checkpoint: str) -> dict[str, HostedPart]:
    """Return the parts that ``checkpoint`` lists, by name. Raises ``BadRequest`` if it is not such a list."""
    try:
        return {part.name: part for part in _decode(checkpoint)}
    except msgspec.MsgspecError as error:
        raise BadRequest(f"OMNIBUS_EXECUTOR_CHECKPOINT must be a JSON list of parts: {error}") from error


def hosted_checkpoints(settings: ExecutorSettings, components: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of a component and its checkpoint, as their own models have them."""
    if settings.engine != ENGINE:
        return [(component, settings.checkpoint) for component in components]
    parts = read_parts(settings.checkpoint)
    return [(parts[name].component, parts[name].checkpoint) for name in components if name in parts]
