"""Measured rates as seconds of one replica per request (Algorithm 3, corrected).

Measured seconds are used directly. The code keeps seconds and never their inverse: an option that a request skips takes
0 s, which has no inverse.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from omnibus.errors import BadRequest
from omnibus_planner.solve.problem import PlanningProblem, check_amount, check_problem, check_shares, require

#: Seconds per request of a request type, an option and the components that it runs. None: not profiled.
Seconds = Callable[[str, str, tuple[str, ...]], float | None]


class SecondsLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of a component alone: ``base_s`` per request and ``token_s`` per token."""

    base_s: float
    token_s: float


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds per request of one replica of ``option`` that runs ``components``.

    ``type`` is a request type, or "" for all.
    """

    option: str
    components: tuple[str, ...]
    seconds: float
    type: str = ""


@dataclass(frozen=True)
class Fit:
    """Result of Algorithm 3.

    ``tau`` are the seconds per request of each component alone, by request type and component. ``alpha`` is the factor
    on them for each profiled option, from running components together or in parallel.
    """

    tau: Mapping[tuple[str, str], float]
    alpha: Mapping[str, float]

    def option_seconds(self, kind: str, option: str, role: tuple[str, ...]) -> float | None:
        """Return alpha_s times the sum of tau_c (Algorithm 3, line 26)."""
        alpha = self.alpha.get(option)
        if alpha is None:
            return None
        return alpha * sum(self.tau.get((kind, component), 0.0) for component in role)

    def component_seconds(self) -> dict[str, float]:
        """Return tau by component, if equal for all request types."""
        return {component: tau for (_, component), tau in self.tau.items()}


def fit_profile(
    problem: PlanningProblem,
    rates: Mapping[str, float],
    lines: Mapping[str, SecondsLine] | None = None,
    tokens: Mapping[str, Mapping[str, float]] | None = None,
) -> Fit:
    """Run Algorithm 3 on ``rates`` of one replica of each option.

    Rates are in req/s at the mix of ``problem``, and count all requests of the mix, including those that skip the
    option. The reference of a component is the first option that runs it alone. Every option has its alpha, also one
    with a single component, so two tensor-parallel degrees may differ. Unused components and unmeasured options are
    ignored.

    ``lines`` and ``tokens`` (by type and component) replace the references: a long video then costs more than an image.
    Raises ``BadRequest`` for an invalid rate, and for a used component without a reference.
    """
    check_problem(problem)
    check_shares(kind.share for kind in problem.types.values())
    for option, rate in rates.items():
        require(option in problem.options, f"the profile measures option {option!r}, which is not declared")
        require(
            check_amount(rate, f"the profile of option {option}") > 0, f"option {option} serves 0 req/s: leave it out"
        )
    tau = _tau_from_rates(problem, rates) if lines is None else _tau_from_lines(problem, lines, tokens or {})
    alpha = {}
    for option, rate in rates.items():
        parts = problem.options[option].components
        alone = sum(
            kind.share * sum(tau.get((name, part), 0.0) for part in parts if part in kind.components)
            for name, kind in problem.types.items()
        )
        alpha[option] = 1.0 / rate / alone if alone > 0 else 1.0
    return Fit(tau, alpha)


def _tau_from_rates(problem: PlanningProblem, rates: Mapping[str, float]) -> dict[tuple[str, str], float]:
    found = {}
    for component in problem.components:
        fraction = sum(kind.share for kind in problem.types.values() if component in kind.components)
        if not fraction > 0:
            continue
        alone = next((name for name in rates if problem.options[name].components == (component,)), None)
        if alone is None:
            raise BadRequest(
                f"component {component} is used but was profiled in no option of its own: measure one, "
                "or give seconds directly"
            )
        for name, kind in problem.types.items():
            if component in kind.components:
                found[name, component] = 1.0 / rates[alone] / fraction
    return found


def _tau_from_lines(
    problem: PlanningProblem, lines: Mapping[str, SecondsLine], tokens: Mapping[str, Mapping[str, float]]
) -> dict[tuple[str, str], float]:
    found = {}
    for name, kind in problem.types.items():
        for component in kind.components:
            require(component in lines, f"component {component} of request type {name} has no line of seconds")
            line, count = lines[component], tokens.get(name, {}).get(component, 0.0)
            base = check_amount(line.base_s, f"base_s of component {component}")
            each = check_amount(line.token_s, f"token_s of component {component}")
            found[name, component] = base + each * check_amount(count, f"tokens of {component} in request type {name}")
    return found


def measured_seconds(rows: Iterable[Measured], otherwise: Seconds | None = None) -> Seconds:
    """Return measured seconds: rows for one type override rows for all, and rows override ``otherwise``.

    Measure options that run several components, and their work when another option has already done a part. Only these
    measurements show interference and lost memory for keys and values.
    """
    known: dict[tuple[str, str, frozenset[str]], float] = {}
    for row in rows:
        known[row.type, row.option, frozenset(row.components)] = check_amount(
            row.seconds, f"seconds of option {row.option}"
        )

    def find_seconds(kind: str, option: str, role: tuple[str, ...]) -> float | None:
        parts = frozenset(role)
        for name in (kind, ""):
            if (name, option, parts) in known:
                return known[name, option, parts]
        return otherwise(kind, option, role) if otherwise else None

    return find_seconds
