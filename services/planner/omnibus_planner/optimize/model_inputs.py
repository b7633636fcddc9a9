"""One model prepared for planning: its options, request types and costs."""

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise

import msgspec

from omnibus.errors import BadRequest
from omnibus.families.plugins import join_names
from omnibus.plan_score import LearnedOption
from omnibus.profile import CostLine, ModelProfile, OptionProfile, Point, RoleCost
from omnibus_planner.declared import shared_components
from omnibus_planner.declared.model import Model, require_valid_model
from omnibus_planner.declared.planned_spec import DeclaredNode, GpuType, PlannedModel
from omnibus_planner.optimize import demand
from omnibus_planner.optimize.candidates import option_hardware, option_service, to_solver_option, usable_options
from omnibus_planner.optimize.cost_model import OptionCosts, Quantities
from omnibus_planner.optimize.edge_sizes import EdgeSizes
from omnibus_planner.optimize.kv_memory import KvMemory
from omnibus_planner.solve.flow_network import Network, build_lattice
from omnibus_planner.solve.problem import PlanningProblem, RequestType, check_problem


class ModelInputs:
    """A planned model with its profile.

    ``left`` maps the unused options of the profile to the reasons. ``lent`` are options on executors of other models,
    by name, such as ``a/E``. ``nodes`` are those for replicas; empty means any. ``learned`` are factors on the seconds
    of options. ``options`` include them, ``measured_options`` and ``profile`` do not. Raises ``BadRequest`` with the
    name of the model and the fault of its declaration or profile.
    """

    def __init__(
        self,
        model: Model,
        profile: ModelProfile,
        gpus: Mapping[str, GpuType],
        nodes: Mapping[str, DeclaredNode] | None = None,
    ) -> None:
        if model.planned is None:
            raise BadRequest(f"model {model.name} is not planned")
        self.name = model.name
        self.model = model
        self.asked: PlannedModel = model.planned
        self.profile = profile
        self._gpus = gpus
        self.nodes = dict(nodes or {})
        self.edges = EdgeSizes(model.components, profile)
        missing = set(model.components) - set(profile.components) - set(model.shares)
        require_valid_model(
            not missing,
            model.name,
            f"has {join_names(missing)}, which its profile does not know: measure it with `omnibus profile`",
        )
        self._memory = KvMemory(profile.kv, gpus)
        found = usable_options(model, profile, gpus, self._memory)
        self.options, self.left = found.options, found.left
        self.lent: tuple[str, ...] = ()
        self.learned: Mapping[str, LearnedOption] = {}
        self.measured_options = self.options
        self.costs = self._build_costs(profile.lines)
        self.order = tuple(profile.order) or tuple(_component_order(model))
        self.order = tuple(pair for pair in self.order if set(pair) <= set(model.components))
        try:
            check_problem(self._build_problem([]))
        except BadRequest as error:
            raise BadRequest(f"model {model.name}: {error.message}") from error
        self.told = demand.declared_demand(model, self.asked, profile, self.costs.kinds)

    def borrow_options(self, models: Mapping[str, Model], ready: Mapping[str, "ModelInputs"]) -> None:
        """Replace own options for borrowed components alone by the lenders' executors."""
        for part, owner in self.model.shares.items():
            shared_components.check_share(self.model, part, owner, models)
        lent: dict[str, OptionProfile] = {}
        for owner in dict.fromkeys(self.model.shares.values()):
            require_valid_model(
                owner in ready, self.name, f"shares with {owner}, which is not planned: plan both, or none"
            )
            lent.update(self._lent_options(ready[owner]))
        borrowed = self._borrowed_components(lent, ready)
        own = {name: option for name, option in self.options.items() if not set(option.components) <= borrowed}
        lines = {
            part: line for owner in self.model.shares.values() for part, line in ready[owner].profile.lines.items()
        }
        self.options, self.lent = {**own, **lent}, tuple(lent)
        self.measured_options = self.options
        if lent:
            self.costs = self._build_costs({**lines, **self.profile.lines})

    def _borrowed_components(
        self, lent: Mapping[str, OptionProfile], ready: Mapping[str, "ModelInputs"]
    ) -> frozenset[str]:
        """Return the components that no own option runs alone any more.

        Some components are shared because they are equal in both models. They count if the other model has executors
        for exactly the components that it lends.
        """
        alone = set(self.model.shares) - self.model.equal_shares.keys()
        for name, option in lent.items():
            owner, _, own = name.rpartition("/")
            if set(ready[owner].options[own].components) == set(option.components):
                alone |= set(option.components)
        return frozenset(alone)

    def apply_learned(self, learned: Mapping[str, LearnedOption]) -> None:
        """Replace the factors on seconds of options, including lent ones.

        Discards the corrections of simulations.
        """
        known = {name: each for name, each in learned.items() if name in self.options}
        self.options = {
            name: slower_option(option, known[name].factor) if name in known else option
            for name, option in self.measured_options.items()
        }
        self.learned = known
        self.costs.set_factors({name: each.factor for name, each in known.items()})

    def build_network(self, kinds: Collection[str], now: Quantities, *, partial: bool = False) -> Network:
        """Return all paths of the types ``kinds`` over all options, with ``partial`` also those in partial roles.

        Each type has share 1.
        """
        return build_lattice(self._build_problem(sorted(kinds)), self.costs.seconds_per_request(now), partial=partial)

    def options_running(self, part: str) -> tuple[str, ...]:
        """Return the options that run component ``part``."""
        return tuple(name for name, option in self.options.items() if part in option.components)

    def _build_problem(self, kinds: Collection[str]) -> PlanningProblem:
        return PlanningProblem(
            components=self.model.components,
            options={name: to_solver_option(option, self._gpus) for name, option in self.options.items()},
            types={kind: RequestType(tuple(kind.split("+")), 1.0) for kind in kinds},
            order=self.order,
            transitive=True,
        )

    def _build_costs(self, lines: Mapping[str, CostLine]) -> OptionCosts:
        try:
            return OptionCosts(self.name, self.model.components, self.profile, self.options, lines, self._memory)
        except BadRequest as error:
            if self.name in error.message:
                raise
            raise BadRequest(f"model {self.name}: {error.message}") from error

    def _lent_options(self, owner: "ModelInputs") -> Iterator[tuple[str, OptionProfile]]:
        """Yield the options of ``owner`` with shared components, for this model."""
        shared = {part for part, name in self.model.shares.items() if name == owner.name}
        for name, option in owner.options.items():
            runs = tuple(part for part in self.model.components if part in shared and part in option.components)
            if not runs or name in owner.lent:
                continue
            rows = self._measured_work(option, runs) or tuple(_mean_work(owner, name, runs))
            if rows:
                yield (
                    f"{owner.name}/{name}",
                    msgspec.structs.replace(
                        option,
                        components=runs,
                        service=option_service(owner.model, option),
                        work=rows,
                        rate=0.0,
                        curve=(),
                    ),
                )

    def _measured_work(self, option: OptionProfile, runs: tuple[str, ...]) -> tuple[RoleCost, ...]:
        """Return own measured work on ``runs`` alone, on the same hardware."""
        for name, own in self.options.items():
            if set(own.components) == set(runs) and option_hardware(own) == option_hardware(option) and own.is_measured:
                return own.work or tuple(_mean_work(self, name, runs))
        return ()


def _mean_work(owner: ModelInputs, name: str, runs: tuple[str, ...]) -> Iterator[RoleCost]:
    """Yield the work of ``owner``'s option on ``runs``.

    The values are means over the request types with the same components of them.
    """
    found: dict[tuple[str, ...], list[tuple[float, float, float]]] = {}
    for kind, each in owner.costs.kinds.items():
        role = tuple(part for part in runs if part in each.components)
        spent = owner.costs.seconds_per_request()(kind, name, role) if role else None
        if spent is not None:
            found.setdefault(role, []).append(
                (each.share or 1e-6, spent, owner.costs.unloaded_latency(kind, name, role))
            )
    for role, rows in found.items():
        total = sum(share for share, _, _ in rows)
        seconds, latency = (sum(row[0] * row[column] for row in rows) / total for column in (1, 2))
        yield RoleCost(role, seconds, "", latency)


def _component_order(model: Model) -> Iterator[tuple[str, str]]:
    """Yield pairs in order: encoders before the first other component, then the others in sequence."""
    encoders = set(model.encoders.values())
    chain = [part for part in model.components if part not in encoders]
    yield from ((part, chain[0]) for part in model.components if part in encoders)
    yield from pairwise(chain)


def slower_option(option: OptionProfile, factor: float) -> OptionProfile:
    """Return ``option`` with all its seconds multiplied by ``factor``."""
    work = tuple(
        msgspec.structs.replace(
            each, seconds=each.seconds * factor, latency=each.latency * factor, first_token=each.first_token * factor
        )
        for each in option.work
    )
    curve = tuple(_slower_point(each, factor) for each in option.curve)
    return msgspec.structs.replace(option, work=work, curve=curve, rate=option.rate / factor)


def _slower_point(point: Point, factor: float) -> Point:
    seconds = {
        name: getattr(point, name) * factor for name in point.__struct_fields__ if name not in ("at_once", "rate")
    }
    return msgspec.structs.replace(point, rate=point.rate / factor, **seconds)
