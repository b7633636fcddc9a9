"""Planned models next to static ones: reads their profiles, plans them in a thread, and reports faults.

A model that cannot be planned keeps its plan, and so do the models that share executors with it.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path as File
from typing import TYPE_CHECKING, NamedTuple

from omnibus import profile as profiles
from omnibus.errors import BadRequest, OmnibusError, StoreUnavailable
from omnibus.metrics import PLANNER
from omnibus.plan import ModelPlan, PriceList
from omnibus.plan_score import LearnedOption, LearnedSeconds
from omnibus.profile import ModelProfile
from omnibus.store import PlanProblem, Store
from omnibus_planner.declared import declarations_file
from omnibus_planner.declared.bus_names import BusNames, shared_components
from omnibus_planner.declared.declarations_file import Declarations
from omnibus_planner.declared.model import Model
from omnibus_planner.declared.shared_processes import AppsModel
from omnibus_planner.optimize.learned_seconds import applied_factors, factors_differ, profile_digest
from omnibus_planner.optimize.load import Loads
from omnibus_planner.optimize.result import PlanningResult

if TYPE_CHECKING:  # importing the solver takes a second, and planners of static models do not need it
    from omnibus_planner.optimize.planner import Planner
    from omnibus_planner.optimize.promise import PromiseChecker

log = logging.getLogger(__name__)

#: Subjects of reported problems: one model, and all of them together.
ONE, ALL = "model {}", "planned models"


class _PlanningRun(NamedTuple):
    """Result of a planning thread."""

    planner: "Planner | None"
    checker: "PromiseChecker | None"
    planned: PlanningResult | None
    faults: dict[str, str]


class PlanningJob:
    """The planned models of the declarations at ``path``.

    ``planner`` is None if no model can be planned, and ``planned`` is the target for them. ``simulate`` is the CPU time
    in seconds for simulating plans, and solving again, before they are promised; 0 disables it.
    """

    def __init__(self, store: Store, path: str, simulate: float = 0.0) -> None:
        self.planner: Planner | None = None
        self.checker: PromiseChecker | None = None
        self.simulate = simulate
        self.planned = _empty_result()
        self._store = store
        self._path = path
        self._models: dict[str, Model] = {}
        self._declared = Declarations({})
        self._static: dict[str, ModelPlan] = {}
        self._seen: dict[str, ModelProfile] = {}
        self.learned: dict[str, LearnedSeconds] = {}
        self.digests: dict[str, str] = {}  # of the profiles in use
        self._told: set[str] | None = None
        self._read_learned = True  # until the store returned the learned factors
        self._turn = asyncio.Lock()

    def set_declarations(self, declared: Declarations, static: Mapping[str, ModelPlan]) -> None:
        """Replace the declarations; ``static`` are the plans of the other models."""
        self._models = declarations_file.planned_models(declared.models, declared.apps)
        self._declared, self._static = declared, dict(static)

    @property
    def adaptive_models(self) -> set[str]:
        """Return the models that are planned again as their load changes."""
        return {name for name, model in self._models.items() if model.planned is not None and model.planned.adapt}

    @property
    def prices(self) -> PriceList:
        """Return the declared prices of requests."""
        return self._declared.prices

    @property
    def gpu_counts(self) -> dict[str, int]:
        """Return the number of GPUs by type."""
        declared = self._declared
        if declared.gpus:
            return {name: kind.count for name, kind in declared.gpus.items()}
        found: dict[str, int] = {}
        for node in declared.nodes.values():
            found[node.gpu] = found.get(node.gpu, 0) + node.gpus
        return found

    @property
    def profile_files(self) -> list[str]:
        """Return the files of profiles."""
        return sorted({self._profile_file(model) for model in self._models.values()} - {""})

    def replan_reason(self, found: Mapping[str, ModelProfile]) -> str:
        """Return the reason to plan again, given the profiles in the store.

        It is empty if they change nothing.
        """
        changed = [
            name
            for name, model in self._models.items()
            if not self._profile_file(model) and name in found and found[name] != self._seen.get(name)
        ]
        return f"profile of {', '.join(changed)} changed" if changed else ""

    async def plan(self, running: Mapping[str, ModelPlan], load: Loads | None = None) -> PlanningResult:
        """Plan again for ``load``, or for the declared demand, starting from ``running``; report faults to the store.

        Raises ``StoreUnavailable`` if the store cannot return the profiles.
        """
        async with self._turn:
            if not self._models:
                self.planner, self.checker, self.planned = None, None, _empty_result()
                await self._report_faults({})
                return self.planned
            found, faults = await self._read_profiles()
            began = time.monotonic()
            made = await asyncio.to_thread(self._run_planner, found, faults, running, load)
            self.planner, self.checker = made.planner, made.checker
            self.planned = self._complete_result(made.planned or _empty_result(), running, made.faults)
            PLANNER.solve.observe(time.monotonic() - began)
            log.info("planned %s in %.2f s", ", ".join(self.planned.models) or "nothing", time.monotonic() - began)
            await self._report_faults(made.faults)
            return self.planned

    async def learn(self, learned: Mapping[str, LearnedSeconds]) -> bool:
        """Use the ``learned`` factors, by model, for later plans; running executors stay until another plan is better.

        Returns True if they differ from the previous factors.
        """
        async with self._turn:
            self.learned = dict(learned)
            checker = self.checker
            if checker is None:
                return False
            factors = self._learned_factors(checker.planner)
            changed = any(
                factors_differ(inputs.learned, factors.get(name, {}))
                for name, inputs in checker.planner.inputs.items()
                if inputs.asked.learn
            )
            if changed:  # in a thread: waits until a running plan is complete
                await asyncio.to_thread(checker.apply_learned, factors)
            return changed

    # Profiles

    def _profile_file(self, model: Model) -> str:
        """Return the path of the profile's file; empty if it is in the store."""
        named = model.planned.profile if model.planned is not None else ""
        return str(File(self._path).parent / named) if named else ""

    async def _read_profiles(self) -> tuple[dict[str, ModelProfile], dict[str, str]]:
        """Return the readable profiles by model, and the faults of the others."""
        found: dict[str, ModelProfile] = {}
        faults: dict[str, str] = {}
        for name, model in self._models.items():
            try:
                found[name] = await self._read_profile(name, model)
            except BadRequest as error:
                faults[name] = f"model {name}: {error.message}"
        self._seen.update(found)
        if self._read_learned:
            self.learned, self._read_learned = await self._store.learned_seconds(), False
        self.digests = {name: profile_digest(profile) for name, profile in found.items()}
        return found, faults

    def _learned_factors(self, planner: "Planner") -> dict[str, dict[str, LearnedOption]]:
        """Return the factors on the profiles in use, for models that learn."""
        return {
            name: applied_factors(self.learned.get(name), self.digests.get(name, ""))
            for name, inputs in planner.inputs.items()
            if inputs.asked.learn
        }

    async def _read_profile(self, name: str, model: Model) -> ModelProfile:
        path = self._profile_file(model)
        if path:
            try:
                return profiles.decode_profile(await asyncio.to_thread(File(path).read_bytes), path)
            except OSError as error:
                raise BadRequest(f"its profile {path} cannot be read: {error.strerror}") from error
        found = await self._store.profile(name)
        if found is None:
            raise BadRequest("the store has no profile of it: write one with `omnibus profile`, or name its file")
        return found

    # Plans

    def _run_planner(
        self,
        found: Mapping[str, ModelProfile],
        faults: Mapping[str, str],
        running: Mapping[str, ModelPlan],
        load: Loads | None,
    ) -> _PlanningRun:
        """Plan in a separate thread."""
        from omnibus_planner.optimize.planner import Planner
        from omnibus_planner.optimize.promise import PromiseChecker
        from omnibus_planner.optimize.usable_models import usable_models

        readable = {
            name: model.with_profile(found[name]) if isinstance(model, AppsModel) else model
            for name, model in self._models.items()
            if name in found
        }
        good, wrong = usable_models(readable, found, self._declared.gpus)
        told = {ONE.format(name): fault for name, fault in {**faults, **wrong}.items()}
        if not good:
            return _PlanningRun(None, None, None, told)
        try:
            planner = Planner(good, found, self._declared.gpus, self._declared.nodes)
            planner.apply_learned(self._learned_factors(planner))
            checker = PromiseChecker(planner) if self.simulate > 0 else None
            planned = checker.plan(load, running, within=self.simulate) if checker else planner.plan(load, running)
            self._check_names(planned.models)
        except OmnibusError as error:
            return _PlanningRun(None, None, None, {**told, ALL: error.message})
        return _PlanningRun(planner, checker, planned, told)

    def _check_names(self, models: Mapping[str, ModelPlan]) -> None:
        names = BusNames()
        for name, plan in self._static.items():
            names.claim_names(name, plan, shared_components(plan))
        for name, plan in models.items():
            names.claim_names(name, plan, self._models[name].shares)

    def _complete_result(
        self, planned: PlanningResult, running: Mapping[str, ModelPlan], faults: Mapping[str, str]
    ) -> PlanningResult:
        """Add the models that cannot be planned to ``planned``.

        They keep their plans if they are still the same models.
        """
        models: dict[str, ModelPlan] = {}
        for name, model in self._models.items():
            before = self.planned.models.get(name) or running.get(name)
            if name in planned.models:
                models[name] = planned.models[name]
            elif before is not None and before.family == model.declared.family and not before.apps:
                models[name] = before
        for fault in faults.values():
            log.error("%s", fault)
        cells = {**{name: each for name, each in self.planned.cells.items() if name in models}, **planned.cells}
        return PlanningResult(models, planned.explain, planned.capacity, planned.rate, cells=cells)

    async def _report_faults(self, faults: Mapping[str, str]) -> None:
        """Put ``faults`` into the store, and delete earlier ones.

        Earlier faults include those of a previous planner.
        """
        try:
            if self._told is None:
                known = await self._store.plan_problems()
                self._told = {who for who in known if who == ALL or who.startswith(ONE.format(""))}
            for who in self._told - faults.keys():
                await self._store.put_problem(who, None)
            for who, fault in faults.items():
                await self._store.put_problem(who, PlanProblem(time.time(), fault))
            self._told = set(faults)
        except StoreUnavailable as error:
            log.warning("%s", error)


def _empty_result() -> PlanningResult:
    return PlanningResult({}, {}, {}, {})
