"""Processes that plans require, and the running ones that match them."""

import os
from collections.abc import Collection, Mapping
from dataclasses import replace

from omnibus.bus import subjects
from omnibus.cluster.desired import ID, TENSOR_PARALLEL, DesiredExecutors, desired_executors
from omnibus.cluster.roles import switching_executors
from omnibus.families.catalog import PYTHON
from omnibus.plan import Plan
from omnibus.process.spec import SHARED, ProcessSpec, python_command
from omnibus.settings import ServiceSettings, read_settings
from omnibus.up.fork_server import can_fork_executors

EXIT_TIMEOUT_SECONDS = 10.0  # seconds that a process may take to end after it has drained
#: Priority of executors beside the gateway on the same machine, unless the environment sets it.
_NICE, _NICE_DEFAULT = "OMNIBUS_EXECUTOR_NICE", "10"
#: What a plan says of an option, whatever all executors are told.
_OF_OPTIONS = ("OMNIBUS_EXECUTOR_ENGINE", "OMNIBUS_EXECUTOR_BATCH", "OMNIBUS_EXECUTOR_DTYPE")


def process_specs(
    *plans: Plan, env: Mapping[str, str], fork_server: str = "", switches: bool = False
) -> dict[str, ProcessSpec]:
    """Return the processes that ``plans`` require together, by name.

    ``env`` is the environment of all of them. ``fork_server`` is the socket of a fork server, which forks those that it
    can. With ``switches``, executors may change their role, see ``omnibus.cluster.roles``.
    """
    specs: dict[str, ProcessSpec] = {}
    for each in (switching_executors if switches else desired_executors)(*plans).values():
        for replica in range(each.replicas):
            spec = _executor_spec(each, replica, env, fork_server)
            spec = _with_origin_name(spec) if spec.name in specs else spec
            specs[spec.name] = spec
    return specs


def reconcile_specs(
    specs: Mapping[str, ProcessSpec], there: Mapping[str, ProcessSpec], ending: Collection[str], vital: bool = False
) -> tuple[set[str], list[ProcessSpec]]:
    """Return the names of processes to keep and the specs to start.

    A running process with another name that does the same work is kept. A new process whose name is in use gets another
    one; if that is in use too, it waits. Executors are vital only at the very start: a faulty later plan must not end
    the running ones.
    """
    live = {name: spec for name, spec in there.items() if name not in ending}
    unchanged_names = {name for name, spec in specs.items() if name in live and _is_same_work(spec, live[name])}
    fresh: dict[str, ProcessSpec] = {}
    for spec in (spec for name, spec in specs.items() if name not in unchanged_names):
        twin = next(
            (name for name, other in live.items() if name not in unchanged_names and _is_same_work(spec, other)), None
        )
        if twin is not None:
            unchanged_names.add(twin)
        elif (named_spec := _with_free_name(spec, there, fresh)) is not None:
            fresh[named_spec.name] = replace(named_spec, vital=spec.vital and vital)
    return unchanged_names, list(fresh.values())


def _with_free_name(
    spec: ProcessSpec, there: Mapping[str, ProcessSpec], fresh: Mapping[str, ProcessSpec]
) -> ProcessSpec | None:
    """Return ``spec`` under a free name, or None to wait."""
    for each in (
        [spec] if _runs_app_code(spec) else [_with_option_name(spec), _with_origin_name(_with_option_name(spec))]
    ):
        if each.name not in there and each.name not in fresh:
            return each
        if each.name in there and _is_same_work(each, there[each.name]):
            return None  # it is just ending, and may come back under its name
    return None


def grace_seconds(env: Mapping[str, str], service: str) -> float:
    """Return the seconds between TERM and KILL for ``service``. They let it drain and close with the environment
    ``env``."""
    return read_settings(ServiceSettings, {**os.environ, **env}).drain_seconds(service) + EXIT_TIMEOUT_SECONDS


def _executor_spec(each: DesiredExecutors, replica: int, env: Mapping[str, str], fork_server: str) -> ProcessSpec:
    kind = each.kind
    own = {name: each.env[name] for name in _OF_OPTIONS if name in each.env}
    if each.gpus > 1 and TENSOR_PARALLEL not in {**os.environ, **env, **each.env}:
        own[TENSOR_PARALLEL] = str(each.tensor_parallel)
    nice = os.environ.get(_NICE, _NICE_DEFAULT)
    id = subjects.subject_token(f"{kind.model}-{kind.option}-{replica}")
    environment = {_NICE: nice, **each.env, ID: id, **env, **own}
    module = f"omnibus_{each.service}"
    is_forked = bool(fork_server) and can_fork_executors({**os.environ, **environment})
    base_name = f"{kind.model}/{kind.option}"
    spec = ProcessSpec(
        f"{base_name}/{replica}" if replica else base_name,  # the same however many there are
        python_command(module),
        env=environment,
        fork_server=fork_server if is_forked else "",
        cwd=SHARED,
        after=("nats", "sidecar", "fork-server") if is_forked else ("nats", "sidecar"),
        blocks=environment["OMNIBUS_EXECUTOR_FAMILY"] == PYTHON,
        vital=not each.apps,  # an app that cannot run must not end what others use
        grace=grace_seconds(environment, each.service),
    )
    return _with_origin_name(spec) if _runs_app_code(spec) else spec


def _runs_app_code(spec: ProcessSpec) -> bool:
    """Return whether it runs an app's code. Two versions of that often run at once."""
    return spec.env["OMNIBUS_EXECUTOR_FAMILY"] == PYTHON


def _origin_mark(spec: ProcessSpec) -> str:
    return spec.env["OMNIBUS_EXECUTOR_ORIGIN"][:4]


def _with_origin_name(spec: ProcessSpec) -> ProcessSpec:
    """Return ``spec`` with the name that includes its origin."""
    return replace(
        spec, name=f"{spec.name}@{_origin_mark(spec)}", env={**spec.env, ID: f"{spec.env[ID]}-{_origin_mark(spec)}"}
    )


def _with_option_name(spec: ProcessSpec) -> ProcessSpec:
    """Return ``spec`` with the name of its option."""
    id = spec.env[ID].removesuffix(f"-{_origin_mark(spec)}")
    return replace(spec, name=spec.name.removesuffix(f"@{_origin_mark(spec)}"), env={**spec.env, ID: id})


def _is_same_work(one: ProcessSpec, other: ProcessSpec) -> bool:
    """Return whether both do the same work, regardless of their names."""
    return one == replace(other, name=one.name, env={**other.env, ID: one.env[ID]}, vital=one.vital)
