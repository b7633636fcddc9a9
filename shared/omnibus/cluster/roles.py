"""Executors that can take another role of their model: same weights, other parts of the language model.

An executor for prefill becomes one for decode if the next plan has fewer of the former and more of the latter. It
drains, keeps its process and its loaded weights, and accepts invocations of its new role. This takes seconds, while a
new executor would load. No I/O.
"""

from collections.abc import Hashable, Mapping
from typing import NamedTuple

import msgspec

from omnibus.cluster.presence import DesiredExecutors, ExecutorKind, desired_executors, replica_counts
from omnibus.families.plugins import current_engine
from omnibus.plan import LANGUAGE_COMPONENTS, ModelPlan, Plan

#: Expected seconds of a role switch: running work is finished, nothing is loaded.
SWITCH_SECONDS = 2.0
#: Variables that define an executor's role. Executors that switch to each other's role are equal in all others.
ROLE_VARIABLES = frozenset(f"OMNIBUS_EXECUTOR_{name}" for name in ("OPTION", "ORIGIN", "COMPONENTS", "TASKS"))
#: Parts of a language model that an engine can serve with its loaded weights, by engine. Others serve only their own.
_PARTS_BY_ENGINE = {
    "": LANGUAGE_COMPONENTS,
    "omnibus_engines:transformers": LANGUAGE_COMPONENTS,
    "omnibus_engines:sim": LANGUAGE_COMPONENTS,
    "omnibus_engines:vllm": LANGUAGE_COMPONENTS - {"thinker"},
}

#: Number of executors of the first kind that become executors of the second.
RoleSwitches = dict[tuple[ExecutorKind, ExecutorKind], int]


class ExecutorRole(NamedTuple):
    """Role of an executor: its parts of a language model. ``rest`` is everything else that must be equal."""

    parts: frozenset[str]
    rest: Hashable

    def can_become(self, other: "ExecutorRole") -> bool:
        """Return whether an executor can take the ``other`` role without loading."""
        return self.rest == other.rest and self.parts != other.parts


def executor_role(env: Mapping[str, str], *placement: Hashable) -> ExecutorRole | None:
    """Return the role of executors with the environment ``env``. Returns None for those that cannot change theirs.

    ``placement`` are further values that must be equal in executors that take each other's place.
    """
    components = frozenset(env.get("OMNIBUS_EXECUTOR_COMPONENTS", "").split(","))
    parts = components & LANGUAGE_COMPONENTS
    if not parts or not parts <= _PARTS_BY_ENGINE.get(
        current_engine(env.get("OMNIBUS_EXECUTOR_ENGINE", "")), frozenset()
    ):
        return None
    same = frozenset((name, value) for name, value in env.items() if name not in ROLE_VARIABLES)
    return ExecutorRole(parts, (components - parts, same, placement))


def plan_roles(models: Mapping[str, ModelPlan]) -> dict[ExecutorKind, ExecutorRole]:
    """Return the roles of all kinds of executors that can change theirs."""
    executors = desired_executors(Plan(1, 0, 0.0, dict(models)))
    roles = {kind: executor_role(each.env, each.service, each.gpus, each.gpu) for kind, each in executors.items()}
    return {kind: role for kind, role in roles.items() if role is not None}


def find_switches(
    have: Mapping[ExecutorKind, int], want: Mapping[ExecutorKind, int], roles: Mapping[ExecutorKind, ExecutorRole]
) -> RoleSwitches:
    """Return the switches on the way from ``have`` to ``want``. One executor of each kind stays until all switches are
    done."""
    spare = {kind: count - max(1, want.get(kind, 0)) for kind, count in have.items() if kind in roles}
    switches: RoleSwitches = {}
    for kind in sorted(roles.keys() & want.keys()):
        lacks = want[kind] - have.get(kind, 0)
        for other in sorted(spare):
            count = min(lacks, spare[other])
            if count > 0 and roles[other].can_become(roles[kind]):
                switches[other, kind] = count
                spare[other] -= count
                lacks -= count
    return switches


def role_switches(before: Mapping[str, ModelPlan], after: Mapping[str, ModelPlan]) -> RoleSwitches:
    """Return the switches from the models ``before`` to those ``after``."""
    roles = {**plan_roles(before), **plan_roles(after)}
    return find_switches(replica_counts(before), replica_counts(after), roles)


def switching_executors(*plans: Plan) -> dict[ExecutorKind, DesiredExecutors]:
    """Return the executors that ``plans`` require together, with role switches. This is as ``desired_executors``,
    without executors of the first plan that become executors of the last one."""
    executors = desired_executors(*plans)
    if len(plans) > 1:
        for (left, _), count in role_switches(plans[0].models, plans[-1].models).items():
            executors[left] = msgspec.structs.replace(executors[left], replicas=executors[left].replicas - count)
    return executors
