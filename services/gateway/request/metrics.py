"""Prometheus metrics read from state that the gateway has anyway: executors, shares of paths, limits, dead letters."""

from collections import Counter

from omnibus.metrics import GATEWAY
from omnibus.recording.dead_letters import REASONS
from omnibus.settings import GatewaySettings
from services.gateway.dispatch.dispatcher import Dispatcher
from services.gateway.request.dead_letters import DeadLetters
from services.gateway.routing.assignment import Assignment
from services.gateway.routing.executors import Members
from services.gateway.routing.router import Router


def watch(
    settings: GatewaySettings, router: Router, members: Members, dispatcher: Dispatcher, dead: DeadLetters
) -> None:
    """Let the metrics of this process be read from these."""
    GATEWAY.inflight.one(lambda: dispatcher.inflight)
    GATEWAY.limit.one(lambda: settings.max_inflight)
    GATEWAY.retained.one(lambda: dispatcher.retention.nbytes)
    GATEWAY.epoch.by(lambda: {(): router.plan.epoch} if router.plan is not None else {})
    GATEWAY.created.by(lambda: {(): router.plan.created} if router.plan is not None else {})
    GATEWAY.planned.by(router.shares)
    GATEWAY.executors.by(lambda: _executors(members))
    GATEWAY.outstanding.by(lambda: _outstanding(members))
    GATEWAY.dead.by(lambda: _dead(router, dead))
    GATEWAY.records_lost.one(lambda: dead.records_lost)


def count_paths(assignment: Assignment, path: str) -> None:
    """Count a request on its ``path``: for each of the models that run it on its own one, so that paths stay few."""
    parts = assignment.parts
    names = path.split(",") if len(parts) > 1 else [path]
    if len(names) == len(parts):
        for part, name in zip(parts, names, strict=True):
            GATEWAY.path(part.model, part.kind, name.removeprefix(f"{part.model}=")).inc()


def _executors(members: Members) -> Counter[tuple[str, ...]]:
    """Count the executors by model, option and state."""
    return Counter((*named, state) for named, state in members.states())


def _outstanding(members: Members) -> dict[tuple[str, ...], float]:
    """Tokens by model and option."""
    found: dict[tuple[str, ...], float] = {}
    for status in members.statuses():
        member = members.get(status.id)
        key = status.model, status.option
        found[key] = found.get(key, 0.0) + (max(0.0, member.outstanding) if member is not None else 0.0)
    return found


def _dead(router: Router, dead: DeadLetters) -> dict[tuple[str, str], int]:
    """Dead letters by model and reason, from 0 on: the first one is a rise as well."""
    models = router.plan.models if router.plan is not None else ()
    return {(model, reason): 0 for model in models for reason in REASONS} | dead.counts
