"""Input of the solver: components, deployment options, request types. Only data and their checks."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import msgspec

from omnibus.errors import BadRequest
from omnibus.families.plugins import join_names

#: More components would need more memory for sets of finished components than there is.
MAX_COMPONENTS = 16


class Infeasible(BadRequest):
    """No deployment meets the request; the message contains the part that fails."""

    code: ClassVar[str] = "infeasible_plan"


class SolverOption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A deployment option: the components of one executor, and the resources of one replica.

    A replica has ``gpus`` of type ``gpu``, divided into tensor-parallel groups of ``tp`` (0: all in one).
    ``weights_gb`` is memory for weights. ``price`` per replica is in any unit (None: ``gpus``). ``start_s`` is the time
    in seconds until a new replica serves (Table 4).
    """

    components: tuple[str, ...]
    gpus: int = 1
    gpu: str = ""
    tp: int = 0
    weights_gb: float = 0.0
    price: float | None = None
    start_s: float = 1.0

    @property
    def cost(self) -> float:
        return float(self.gpus) if self.price is None else self.price


class RequestType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Components that requests use, and the share of these requests."""

    components: tuple[str, ...]
    share: float


class PlanningProblem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Components, their ``order`` (pairs: the first runs before the second), options and request types.

    A request type that lacks the middle component of a -> b -> c has a and c in any order, unless ``transitive``. The
    rate of a type is its share times the rate of all requests; shares usually add up to 1.
    """

    components: tuple[str, ...]
    options: dict[str, SolverOption]
    types: dict[str, RequestType]
    order: tuple[tuple[str, str], ...] = ()
    transitive: bool = False

    def component_predecessors(self) -> dict[str, frozenset[str]]:
        """Return the components that run before each component. Raises ``BadRequest`` for a cycle."""
        direct: dict[str, set[str]] = {component: set() for component in self.components}
        for first, then in self.order:
            direct[then].add(first)
        closed = _transitive_closure(direct)
        return {name: frozenset(closed[name] if self.transitive else direct[name]) for name in self.components}


def check_problem(problem: PlanningProblem) -> PlanningProblem:
    """Return ``problem`` itself. Raises ``BadRequest`` with the first fault."""
    known = set(problem.components)
    require(bool(known), "there is no component")
    require(len(known) == len(problem.components), f"a component is named twice: {join_names(problem.components)}")
    require(
        len(known) <= MAX_COMPONENTS,
        f"{len(known)} components are more than {MAX_COMPONENTS}: put some that always run together into one",
    )
    for pair in problem.order:
        _check_known(pair, known, f"the order {' before '.join(pair)}")
    problem.component_predecessors()
    for name, option in problem.options.items():
        _check_option(name, option, known)
    for name, kind in problem.types.items():
        _check_components(kind.components, known, f"request type {name}")
        check_amount(kind.share, f"the share of request type {name}")
    return problem


def check_shares(shares: Iterable[float]) -> None:
    """Raises ``BadRequest`` if all shares are 0."""
    require(
        any(share > 0 for share in shares), "the workload is empty: give at least one request type a positive share"
    )


def _check_option(name: str, option: SolverOption, known: set[str]) -> None:
    _check_components(option.components, known, f"option {name}")
    require(bool(name) and ">" not in name, f"option {name!r} has no name, or one with '>'")
    require(option.gpus >= 1, f"option {name} has {option.gpus} GPUs; an executor takes at least 1")
    require(
        option.tp >= 0 and option.gpus % (option.tp or option.gpus) == 0,
        f"option {name} splits {option.gpus} GPUs into groups of {option.tp}",
    )
    check_amount(option.weights_gb, f"weights_gb of option {name}")
    check_amount(option.cost, f"the price of option {name}")
    check_amount(option.start_s, f"start_s of option {name}")


def _check_components(components: Sequence[str], known: set[str], what: str) -> None:
    require(bool(components), f"{what} has no component")
    require(len(set(components)) == len(components), f"{what} names a component twice: {join_names(components)}")
    _check_known(components, known, what)


def _check_known(components: Iterable[str], known: set[str], what: str) -> None:
    unknown = sorted(set(components) - known)
    require(not unknown, f"{what} names {join_names(unknown)}; there is {join_names(sorted(known))}")


def _transitive_closure(direct: Mapping[str, set[str]]) -> dict[str, frozenset[str]]:
    """Return all direct and indirect predecessors of each component."""
    closed: dict[str, frozenset[str]] = {}
    while len(closed) < len(direct):
        ready = [name for name, first in direct.items() if name not in closed and first <= closed.keys()]
        left = [name for name in direct if name not in closed]
        require(bool(ready), f"the order has a cycle among {join_names(left)}")
        for name in ready:
            closed[name] = frozenset(direct[name]).union(*(closed[first] for first in direct[name]))
    return closed


def check_amount(value: float, what: str) -> float:
    """Return ``value`` if it is finite and not negative. Raises ``BadRequest``."""
    require(math.isfinite(value) and value >= 0, f"{what} is {value}: it must be a finite number, 0 or more")
    return float(value)


def require(good: bool, fault: str) -> None:
    if not good:
        raise BadRequest(fault)
