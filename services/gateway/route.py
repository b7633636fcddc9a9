"""Choosing: the request's path by the planned rates, each executor by least outstanding work.

Static in the request (Cornserve section 5.3): nothing is asked of anybody. The path follows from the
invocation's number and the plan; the replica from what this gateway itself has sent and not seen finish.
"""

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from omnibus import plan as plans
from omnibus.errors import BadRequest, NotFound, StageUnavailable
from omnibus.plan import ModelPlan, Path, Plan
from services.gateway.members import Member, Members


class Route(NamedTuple):
    """A path with its executors filled in, per node."""

    path: str
    options: tuple[str, ...]
    executors: tuple[str, ...]


class Ticket(NamedTuple):
    """An invocation's identity: its id says which gateway, which kind of request and its number."""

    id: str
    kind: str
    number: int


class Router:
    """Holds the plan and the members; makes ids and routes."""

    def __init__(self, gateway: str, members: Members) -> None:
        self.gateway = gateway
        self.members = members
        self.plan: Plan | None = None
        self._kinds: dict[str, tuple[int, count[int]]] = {}

    def model(self, name: str) -> ModelPlan:
        """Raises ``NotFound`` naming what there is, and ``StageUnavailable`` before the first plan."""
        if self.plan is None:
            raise StageUnavailable("the planner has written no plan yet: try again in a moment", stage="planner")
        models = self.plan.models
        if name not in models:
            raise NotFound(f"there is no model {name!r}; there is {', '.join(sorted(models)) or 'none'}", param="model")
        return models[name]

    def ticket(self, model: str, kind: str) -> Ticket:
        """A new id for a request of ``kind`` to ``model``."""
        key = f"{model}/{kind}"
        if key not in self._kinds:
            self._kinds[key] = (len(self._kinds), count())
        index, numbers = self._kinds[key]
        number = next(numbers)
        return Ticket(f"{self.gateway}-{index:x}-{number:x}", kind, number)

    def path(self, model: str, ticket: Ticket) -> Path:
        """The path of this request: the same for the same id and plan seed, whoever computes it."""
        seed = self.plan.seed if self.plan is not None else 0
        at = plans.point(self.gateway, f"{model}/{ticket.kind}", ticket.number, seed)
        return plans.choose(self._paths(model, ticket.kind), at)

    def _paths(self, model: str, kind: str) -> tuple[Path, ...]:
        return self.model(model).types.get(kind, ())

    def route(
        self,
        model: str,
        ticket: Ticket,
        components: Sequence[str],
        exclude: frozenset[str] = frozenset(),
        pinned: str = "",
    ) -> Route:
        """The planned path if all its stages live, else another path of the type that does.

        ``pinned`` names a path that must be taken. Raises ``StageUnavailable`` that names the stage that
        stops every path, and ``BadRequest`` for a pin that the plan does not have.
        """
        missing: list[list[str]] = []
        for path in self._candidates(model, ticket, pinned):
            chosen = {option: self._least(model, option, exclude) for option in set(path.options.values())}
            if None not in chosen.values():
                options = tuple(path.options[component] for component in components)
                return Route(path.name, options, tuple(chosen[option].status.id for option in options))  # type: ignore[union-attr]
            missing.append([component for component in components if chosen[path.options[component]] is None])
        stage = next((part for part in missing[0] if all(part in others for others in missing)), missing[0][0])
        raise StageUnavailable(f"no live executor for stage {stage!r} of {model}: start one, or wait", stage=stage)

    def _candidates(self, model: str, ticket: Ticket, pinned: str) -> list[Path]:
        paths = self._paths(model, ticket.kind)
        if pinned:
            chosen = [path for path in paths if path.name == pinned]
            if not chosen:
                names = ", ".join(path.name for path in paths)
                raise BadRequest(f"no path {pinned[:80]!r} for {ticket.kind}; there is {names}", param="x-omnibus-path")
            return chosen
        planned = self.path(model, ticket)
        return [planned, *(path for path in paths if path is not planned)]

    def along(self, model: str, options: Sequence[str], components: Sequence[str]) -> Route:
        """A route through the given options, as a replay wants it. Raises ``StageUnavailable``."""
        chosen = {option: self._least(model, option, frozenset()) for option in set(options)}
        for option, component in zip(options, components, strict=True):
            if chosen[option] is None:
                raise StageUnavailable(f"no live executor of option {option!r} of {model}: start one", stage=component)
        executors = tuple(chosen[option].status.id for option in options)  # type: ignore[union-attr]
        return Route(">".join(dict.fromkeys(options)), tuple(options), executors)

    def _least(self, model: str, option: str, exclude: frozenset[str]) -> Member | None:
        members = self.members.fit(model, option, exclude)
        return min(members, key=_outstanding) if members else None

    def add(self, executor: str, work: int) -> None:
        """Count ``work`` tokens as sent to ``executor``, or, if negative, as finished."""
        member = self.members.get(executor)
        if member is not None:
            member.outstanding += work


def _outstanding(member: Member) -> tuple[int, str]:
    return member.outstanding, member.status.id
