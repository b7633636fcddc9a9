"""Prometheus metrics computed at scrape time: executors, path shares, limits, dead letters."""

from collections import Counter

from omnibus.metrics import GATEWAY
from omnibus.recording.dead_letters import REASONS
from omnibus.settings import GatewaySettings
from omnibus_gateway.dispatch.dispatcher import Dispatcher
from omnibus_gateway.request.dead_letters import DeadLetters
from omnibus_gateway.routing.assignment import Assignment
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import Router


def register_metrics(
    settings: GatewaySettings, router: Router, members: ExecutorTable, dispatcher: Dispatcher, dead: DeadLetters
) -> None:
    """Register these objects as sources of the metrics of this process."""
    GATEWAY.inflight.set_value(lambda: dispatcher.inflight_count)
    GATEWAY.limit.set_value(lambda: settings.max_inflight)
    GATEWAY.retained.set_value(lambda: dispatcher.retention.nbytes)
    GATEWAY.epoch.set_values(lambda: {(): router.plan.epoch} if router.plan is not None else {})
    GATEWAY.created.set_values(lambda: {(): router.plan.created} if router.plan is not None else {})
    GATEWAY.planned.set_values(router.path_shares)
    GATEWAY.executors.set_values(lambda: _count_executors(members))
    GATEWAY.outstanding.set_values(lambda: _outstanding_tokens(members))
    GATEWAY.dead.set_values(lambda: _count_dead_letters(router, dead))
    GATEWAY.records_lost.set_value(lambda: dead.records_lost)


def count_paths(assignment: Assignment, path: str) -> None:
    """Count a request on the path of each of its models.

    The single paths are few, unlike their combinations in ``path``.
    """
    parts = assignment.parts
    if len(parts) == 1 and "=" not in path:
        GATEWAY.path_counter(parts[0].model, parts[0].kind, path).inc()
        return
    names = path.split(",") if len(parts) > 1 else [path]
    if len(names) == len(parts):
        for part, name in zip(parts, names, strict=True):
            GATEWAY.path_counter(part.model, part.kind, name.removeprefix(f"{part.model}=")).inc()


def _count_executors(members: ExecutorTable) -> Counter[tuple[str, ...]]:
    """Count the executors by model, option and state."""
    return Counter((*labels, state) for labels, state in members.executor_states())


def _outstanding_tokens(members: ExecutorTable) -> dict[tuple[str, ...], float]:
    """Return outstanding tokens by model and option."""
    tokens: dict[tuple[str, ...], float] = {}
    for status in members.statuses():
        member = members.get(status.id)
        key = status.model, status.option
        tokens[key] = tokens.get(key, 0.0) + (max(0.0, member.outstanding) if member is not None else 0.0)
    return tokens


def _count_dead_letters(router: Router, dead: DeadLetters) -> dict[tuple[str, str], int]:
    """Count dead letters by model and reason, from 0: the first one is an increase as well."""
    models = router.plan.models if router.plan is not None else ()
    return {(model, reason): 0 for model in models for reason in REASONS} | dead.counts
