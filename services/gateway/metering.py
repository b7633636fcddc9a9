"""What Prometheus asks of a gateway that it knows anyway: executors, shares of paths, limits."""

from collections import Counter

from omnibus.metrics import GATEWAY
from omnibus.settings import GatewaySettings
from services.gateway.members import Members
from services.gateway.route import Router


def watch(settings: GatewaySettings, router: Router, members: Members) -> None:
    """Let the metrics of this process be read from ``router`` and ``members``."""
    GATEWAY.limit.set(settings.max_inflight)
    GATEWAY.planned.by(router.shares)
    GATEWAY.executors.by(lambda: _executors(members))
    GATEWAY.outstanding.by(lambda: _outstanding(members))


def _executors(members: Members) -> Counter[tuple[str, ...]]:
    """How many there are by model, option and state."""
    return Counter((*named, state) for named, state in members.states())


def _outstanding(members: Members) -> dict[tuple[str, ...], float]:
    """Tokens by model and option."""
    found: dict[tuple[str, ...], float] = {}
    for status in members.statuses():
        member = members.get(status.id)
        key = status.model, status.option
        found[key] = found.get(key, 0.0) + (max(0.0, member.outstanding) if member is not None else 0.0)
    return found
