"""One model made ready to be planned: its options, its request types, and what each costs."""

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise

import msgspec

from omnibus.errors import BadRequest
from omnibus.families.plugins import listed
from omnibus.profile import Line, ModelProfile, OptionProfile, Work
from services.planner.declared import shared_components
from services.planner.declared.model import Model, require
from services.planner.declared.planned_spec import GpuType, PlannedModel
from services.planner.optimize import demand
from services.planner.optimize.candidates import hardware, offers, service, solved
from services.planner.optimize.cost_model import Costs, Quantities
from services.planner.optimize.kv_memory import Memory
from services.planner.solve.flow_network import Network, lattice
from services.planner.solve.problem import Problem, RequestType, check


class Ready:
    """A planned model with its profile. Raises ``BadRequest`` that names the model and what is wrong with either.

    ``left`` says which options of the profile are not used, and why. ``lent`` are options that run other models'
    executors, by name, such as ``a/E``.
    """

    def __init__(self, model: Model, profile: ModelProfile, gpus: Mapping[str, GpuType]) -> None:
        if model.planned is None:
            raise BadRequest(f"model {model.name} is not planned")
        self.name = model.name
        self.model = model
        self.asked: PlannedModel = model.planned
        self.profile = profile
        self._gpus = gpus
        missing = set(model.components) - set(profile.components) - set(model.shares)
        require(
            not missing,
            model.name,
            f"has {listed(missing)}, which its profile does not know: measure it with `omnibus profile`",
        )
        self._memory = Memory(profile.kv, gpus)
        found = offers(model, profile, gpus, self._memory)
        self.options, self.left = found.options, found.left
        self.lent: tuple[str, ...] = ()
        self.costs = self._costs(profile.lines)
        self.order = tuple(profile.order) or tuple(_order(model))
        self.order = tuple(pair for pair in self.order if set(pair) <= set(model.components))
        try:
            check(self._problem([]))
        except BadRequest as error:
            raise BadRequest(f"model {model.name}: {error.message}") from error
        self.told = demand.declared(model, self.asked, profile, self.costs.kinds)

    def borrow(self, models: Mapping[str, Model], ready: Mapping[str, "Ready"]) -> None:
        """Use the executors of the models that lend components, in place of options of its own for these alone."""
        for part, owner in self.model.shares.items():
            shared_components.check(self.model, part, owner, models)
        lent: dict[str, OptionProfile] = {}
        for owner in dict.fromkeys(self.model.shares.values()):
            require(owner in ready, self.name, f"shares with {owner}, which is not planned: plan both, or none")
            lent.update(self._lent(ready[owner]))
        borrowed = set(self.model.shares)
        own = {name: option for name, option in self.options.items() if not set(option.components) <= borrowed}
        lines = {
            part: line for owner in self.model.shares.values() for part, line in ready[owner].profile.lines.items()
        }
        self.options, self.lent = {**own, **lent}, tuple(lent)
        if lent:
            self.costs = self._costs({**lines, **self.profile.lines})

    def network(self, kinds: Collection[str], now: Quantities) -> Network:
        """All paths of the request types ``kinds``, each with share 1, over all options."""
        return lattice(self._problem(sorted(kinds)), self.costs.seconds(now))

    def runs(self, part: str) -> tuple[str, ...]:
        """Options that run component ``part``."""
        return tuple(name for name, option in self.options.items() if part in option.components)

    def _problem(self, kinds: Collection[str]) -> Problem:
        return Problem(
            components=self.model.components,
            options={name: solved(option, self._gpus) for name, option in self.options.items()},
            types={kind: RequestType(tuple(kind.split("+")), 1.0) for kind in kinds},
            order=self.order,
            transitive=True,
        )

    def _costs(self, lines: Mapping[str, Line]) -> Costs:
        try:
            return Costs(self.name, self.model.components, self.profile, self.options, lines, self._memory)
        except BadRequest as error:
            if self.name in error.message:
                raise
            raise BadRequest(f"model {self.name}: {error.message}") from error

    def _lent(self, owner: "Ready") -> Iterator[tuple[str, OptionProfile]]:
        """Each option of ``owner`` that runs a component which this model shares with it, as this model uses it."""
        shared = {part for part, name in self.model.shares.items() if name == owner.name}
        for name, option in owner.options.items():
            runs = tuple(part for part in self.model.components if part in shared and part in option.components)
            if not runs or name in owner.lent:
                continue
            rows = self._rows(option, runs) or tuple(_rows(owner, name, runs))
            if rows:
                yield (
                    f"{owner.name}/{name}",
                    msgspec.structs.replace(
                        option, components=runs, service=service(owner.model, option), work=rows, rate=0.0, curve=()
                    ),
                )

    def _rows(self, option: OptionProfile, runs: tuple[str, ...]) -> tuple[Work, ...]:
        """Return the work on ``runs`` alone that this model's own profile has measured on the same hardware."""
        for name, own in self.options.items():
            if set(own.components) == set(runs) and hardware(own) == hardware(option) and own.measured:
                return own.work or tuple(_rows(self, name, runs))
        return ()


def _rows(owner: Ready, name: str, runs: tuple[str, ...]) -> Iterator[Work]:
    """Yield the work of ``owner``'s option on ``runs``, as means over the request types that use the same of them."""
    found: dict[tuple[str, ...], list[tuple[float, float, float]]] = {}
    for kind, each in owner.costs.kinds.items():
        role = tuple(part for part in runs if part in each.components)
        spent = owner.costs.seconds()(kind, name, role) if role else None
        if spent is not None:
            found.setdefault(role, []).append((each.share or 1e-6, spent, owner.costs.latency(kind, name, role)))
    for role, rows in found.items():
        total = sum(share for share, _, _ in rows)
        seconds, latency = (sum(row[0] * row[column] for row in rows) / total for column in (1, 2))
        yield Work(role, seconds, "", latency)


def _order(model: Model) -> Iterator[tuple[str, str]]:
    """Encoders before the first of the others, which run one after the other."""
    encoders = set(model.encoders.values())
    chain = [part for part in model.components if part not in encoders]
    yield from ((part, chain[0]) for part in model.components if part in encoders)
    yield from pairwise(chain)
