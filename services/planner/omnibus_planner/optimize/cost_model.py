"""Cost of a request on an option: as measured, else by Algorithm 3 from components alone.

Seconds hold for requests of the measured sizes. For others they are multiplied by the ratio that the lines of the
components give: sum of line(q) / sum of line(measured q).
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from omnibus.errors import BadRequest
from omnibus.families.plugins import join_names
from omnibus.plan import request_type
from omnibus.profile import CostLine, ModelProfile, OptionProfile
from omnibus_planner.optimize.candidates import Hardware, option_hardware
from omnibus_planner.optimize.corrections import CostCorrections
from omnibus_planner.optimize.kv_memory import KvMemory
from omnibus_planner.solve import cost_fit as algorithm
from omnibus_planner.solve.cost_fit import Fit, Measured, Seconds
from omnibus_planner.solve.problem import PlanningProblem, RequestType, SolverOption

#: Means of ``QUANTITIES`` per request, by request type.
Quantities = Mapping[str, Mapping[str, float]]
#: Seconds of a component alone, in terms of ``solve``: exactly those passed for each request type.
_IDENTITY_LINE = algorithm.SecondsLine(0.0, 1.0)


class MeasuredType(NamedTuple):
    """A measured request type."""

    components: frozenset[str]
    share: float
    quantities: Mapping[str, float]


class OptionCosts:
    """Seconds and latencies of ``options`` (names as in plans) per request type.

    Any request type of ``components`` has them. Raises ``BadRequest`` with the name of the component for an option that
    was not measured and cannot be estimated.
    """

    def __init__(
        self,
        model: str,
        components: tuple[str, ...],
        profile: ModelProfile,
        options: Mapping[str, OptionProfile],
        lines: Mapping[str, CostLine],
        memory: KvMemory,
    ) -> None:
        self.model = model
        self.components = components
        self.options = dict(options)
        self.lines = lines
        self.kinds = measured_types(model, components, profile)
        self._memory = memory
        self._learned: dict[str, float] = {}
        self._known: dict[tuple[str, str, Hardware], float | None] = {}
        called = {name: request_type(components, frozenset(kind.components)) for name, kind in profile.types.items()}
        self._rows = {
            (called.get(work.type, work.type), name, frozenset(work.components)): work
            for name, option in options.items()
            for work in option.work
        }
        self.corrections = CostCorrections({name: option.components for name, option in options.items()}, self._rows)
        unknown = sorted({kind for kind, _, _ in self._rows} - {*self.kinds, ""} - set(called))
        if unknown:
            raise BadRequest(
                f"model {model}: its profile measures work of {join_names(unknown)}, which are no request types"
            )
        self._measured = algorithm.measured_seconds(
            Measured(option, work.components, work.seconds, kind) for (kind, option, _), work in self._rows.items()
        )
        self._fits = {
            each: self._fit_hardware(each) for each in {option_hardware(option) for option in options.values()}
        }
        for name, option in options.items():
            self._check_option(name, option)

    def set_factors(self, factors: Mapping[str, float]) -> None:
        """Replace the factors on the measured seconds, by option; other options have 1."""
        self._learned = dict(factors)
        self.corrections.clear()

    def type_quantities(self, kind: str) -> Mapping[str, float]:
        """Return the quantities of a measured type.

        For other types it is the mean of all types with the same components or more.
        """
        if kind in self.kinds:
            return self.kinds[kind].quantities
        parts = frozenset(kind.split("+"))
        wider = [each for each in self.kinds.values() if parts <= each.components] or list(self.kinds.values())
        names = {name for each in wider for name in each.quantities}
        return {name: sum(each.quantities.get(name, 0.0) for each in wider) / len(wider) for name in names}

    def seconds_per_request(self, now: Quantities | None = None) -> Seconds:
        """Return one replica's seconds per request, for the quantities ``now`` if given."""
        told = now or {}

        def spent_seconds(kind: str, option: str, role: tuple[str, ...]) -> float | None:
            found = self._measured_seconds(kind, option, role)
            if found is None:
                return None
            found *= self._size_factor(kind, option, role, told.get(kind)) * self.corrections.factor(kind, option, role)
            found *= self._learned.get(option, 1.0)
            latency = self.unloaded_latency(kind, option, role, now) or found
            sizes = {**self.type_quantities(kind), **told.get(kind, {})}
            return self._memory.bound_seconds(self.options[option], role, sizes, found, latency)

        return spent_seconds

    def unloaded_latency(self, kind: str, option: str, role: tuple[str, ...], now: Quantities | None = None) -> float:
        """Return the seconds of a request when nothing else runs; 0 if they were not measured."""
        for name in (kind, ""):
            work = self._rows.get((name, option, frozenset(role)))
            if work is not None and work.latency:
                sized = work.latency * self._size_factor(kind, option, role, (now or {}).get(kind))
                return sized * self._learned.get(option, 1.0)
        return 0.0

    def _measured_seconds(self, kind: str, option: str, role: tuple[str, ...]) -> float | None:
        """Return the seconds for requests of the measured sizes."""
        found = self._measured(kind, option, role)
        if found is not None:
            return found
        fit = self._fits[option_hardware(self.options[option])]
        known = all(
            self._component_seconds(kind, part, option_hardware(self.options[option])) is not None for part in role
        )
        if not known or option not in fit.alpha:
            return None
        if kind in self.kinds:
            return fit.option_seconds(kind, option, role)
        here = option_hardware(self.options[option])
        return fit.alpha[option] * sum(self._component_seconds(kind, part, here) or 0.0 for part in role)

    def _size_factor(self, kind: str, option: str, role: tuple[str, ...], now: Mapping[str, float] | None) -> float:
        if not now or not any(part in self.lines for part in role):
            return 1.0
        before = self.type_quantities(kind)
        here = option_hardware(self.options[option])
        fixed = sum(self._component_seconds(kind, part, here) or 0.0 for part in role if part not in self.lines)
        was, is_now = (
            fixed + sum(self.lines[part].seconds(sizes) for part in role if part in self.lines)
            for sizes in (before, {**before, **now})
        )
        return is_now / was if was > 0 else 1.0

    # Components alone

    def _component_seconds(self, kind: str, part: str, where: Hardware) -> float | None:
        """Return seconds of ``part`` alone for ``kind``, on this or any hardware."""
        key = kind, part, where
        if key not in self._known:
            self._known[key] = self._find_component_seconds(*key)
        return self._known[key]

    def _find_component_seconds(self, kind: str, part: str, where: Hardware) -> float | None:
        singles = [name for name, option in self.options.items() if option.components == (part,)]
        singles.sort(key=lambda name: option_hardware(self.options[name]) != where)
        for name in singles:
            found = self._measured(kind, name, (part,))
            if found is not None:
                return found
        if part in self.lines:
            return self.lines[part].seconds(self.type_quantities(kind))
        rates = (self.options[name].rate for name in singles)
        rate, using = next((rate for rate in rates if rate > 0), 0.0), self._using_share(part)
        if rate > 0 and using > 0:
            return 1.0 / rate / using
        return self._mean_seconds(part, singles)

    def _using_share(self, part: str) -> float:
        """Return the share of the measured requests that use ``part``."""
        return sum(kind.share for kind in self.kinds.values() if part in kind.components)

    def _mean_seconds(self, part: str, singles: Iterable[str]) -> float | None:
        """Return the mean over the types for which ``part`` was measured alone."""
        for name in singles:
            found = [
                work.seconds
                for (_, option, parts), work in self._rows.items()
                if (option, parts) == (name, frozenset((part,)))
            ]
            if found:
                return sum(found) / len(found)
        return None

    # Components together

    def _fit_hardware(self, where: Hardware) -> Fit:
        """Fit Algorithm 3 to the options on one hardware; rows of work, if any, determine alpha."""
        here = {name: option for name, option in self.options.items() if option_hardware(option) == where}
        tau = {
            (kind, part): alone
            for kind in self.kinds
            for part in self.kinds[kind].components
            if (alone := self._component_seconds(kind, part, where)) is not None
        }
        alpha = {name: ratio for name in here if (ratio := self._slowdown_factor(name, tau)) is not None}
        rates = {name: option.rate for name, option in here.items() if option.rate > 0 and name not in alpha}
        if rates:
            for name in rates:
                self._check_alone(name, here[name], tau)
            types = {name: RequestType(tuple(kind.components), kind.share) for name, kind in self.kinds.items()}
            options = {name: SolverOption(here[name].components, where.gpus) for name in rates}
            tokens: dict[str, dict[str, float]] = {name: {} for name in types}
            for (kind, part), each in tau.items():
                tokens[kind][part] = each
            problem = PlanningProblem(self.components, options, types)
            told = dict.fromkeys(self.components, _IDENTITY_LINE)
            alpha |= algorithm.fit_profile(problem, rates, told, tokens).alpha
        for name, option in here.items():
            if name not in alpha and not option.is_measured:
                alpha[name] = _estimate_slowdown(option, {other: alpha[other] for other in alpha}, here)
        return Fit(tau, alpha)

    def _slowdown_factor(self, name: str, tau: Mapping[tuple[str, str], float]) -> float | None:
        """Return the option's time relative to its components alone, over measured types."""
        measured = alone = 0.0
        for kind, each in self.kinds.items():
            role = tuple(part for part in self.options[name].components if part in each.components)
            spent = self._measured(kind, name, role) if role else None
            if spent is not None and all((kind, part) in tau for part in role):
                weight = each.share or 1e-6
                measured += weight * spent
                alone += weight * sum(tau[kind, part] for part in role)
        return measured / alone if alone > 0 else None

    def _check_alone(self, name: str, option: OptionProfile, tau: Mapping[tuple[str, str], float]) -> None:
        for part in option.components:
            if self._using_share(part) > 0 and not any(known == part for _, known in tau):
                raise self._unmeasured_error(name, part)

    def _check_option(self, name: str, option: OptionProfile) -> None:
        if option.is_measured:
            return
        where = option_hardware(option)
        for part in option.components:
            alone = [
                other
                for other in self.options.values()
                if other.components == (part,) and option_hardware(other) == where and other.is_measured
            ]
            if not alone:
                raise self._unmeasured_error(name, part)

    def _unmeasured_error(self, option: str, part: str) -> BadRequest:
        where = option_hardware(self.options[option])
        on = f" on {where.gpus} x {where.gpu}" if where.gpu else ""
        return BadRequest(
            f"model {self.model}: option {option} cannot be estimated, because component {part} was not measured "
            f"alone{on}: measure it with `omnibus profile`"
        )


def measured_types(model: str, components: tuple[str, ...], profile: ModelProfile) -> dict[str, MeasuredType]:
    """Return the measured request types by their names in plans.

    Types with components of other models are excluded.
    """
    found: dict[str, MeasuredType] = {}
    for each in profile.types.values():
        parts = frozenset(each.components)
        if parts <= set(components):
            name = request_type(components, parts)
            if name in found:
                raise BadRequest(f"model {model}: its profile has two request types of {join_names(parts)}")
            found[name] = MeasuredType(parts, each.share, each.quantities)
    return found


def _estimate_slowdown(option: OptionProfile, alpha: Mapping[str, float], here: Mapping[str, OptionProfile]) -> float:
    """Estimate the slowdown of an unmeasured option: the largest of its measured parts, at least 1.

    Without a slowdown, an unmeasured option would always look best.
    """
    parts = set(option.components)
    within = [
        ratio for name, ratio in alpha.items() if len(here[name].components) > 1 and set(here[name].components) <= parts
    ]
    return max([1.0, *within])
