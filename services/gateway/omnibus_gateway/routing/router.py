"""Routing: the path by the planned rates, each executor by the least outstanding work.

Routing is static in the request (Cornserve section 5.3): the gateway queries no executor. The path follows from the
invocation's number and the plan. The replica follows from the work that this gateway sent and the other work that
executors report. For an encoder the gateway also considers its recent items, for a turn the executor of the last one.
With several nodes it considers the location of the inputs (``omnibus_gateway.routing.replicas``).

Identity of an invocation, for which a route is found.
"""

import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from math import inf
from os import urandom
from typing import NamedTuple

from omnibus import plan as plans
from omnibus.bus.messages import ModelGrowth
from omnibus.errors import BadRequest, NotFound, StageUnavailable
from omnibus.graph import GraphNode
from omnibus.plan import ModelPlan, Path, Plan
from omnibus.store import AdapterRecord
from omnibus_gateway.routing.assignment import MAX_CACHED_SHAPES, Assignment, DefaultSampling, ModelPart, PlanScope
from omnibus_gateway.routing.executors import ExecutorEntry, ExecutorTable
from omnibus_gateway.routing.paths import CellChooser, OnlyRoutes, check_names, filter_by_pins, find_named_paths
from omnibus_gateway.routing.paths import ExecutorRoute as ExecutorRoute
from omnibus_gateway.routing.pools import ExecutorSample
from omnibus_gateway.routing.replicas import ChosenReplica, ConversationPoints, Nearness, ReplicaChooser


class InvocationTicket(NamedTuple):
    """Identity of an invocation: its id names the gateway and the kind of request.

    Its number determines its route. ``cache_key`` names the conversation that it is a turn of, if any.
    """

    id: str
    kind: str
    number: int
    cache_key: str = ""


#: An empty exclusion.
NOBODY: frozenset[str] = frozenset()
NO_PATHS: Mapping[str, str] = {}  # no path is preferred to the planned one


class Router:
    """Holds the plan and the executors; creates ids and routes."""

    def __init__(self, gateway: str, members: ExecutorTable, nearness: Nearness | None = None) -> None:
        """``nearness`` prefers executors of ``members`` by their nodes; without it all are equal."""
        self.gateway = gateway
        self.members = members
        self._nearness = nearness
        self._plan: Plan | None = None
        #: True if some models of the plan have latency goals.
        self.has_goals = False
        self._scope: PlanScope | None = None
        self._paths: dict[tuple[str, str], tuple[Path, ...]] = {}
        self._known_stages: dict[tuple[ModelPart, str], dict[str, list[int]]] = {}
        self._only_routes = OnlyRoutes(members, nearness)
        self._lent: dict[tuple[str, str], tuple[str, str]] = {}
        #: Adapters of models, and the model that each adapts.
        self.adapter_bases: Mapping[str, str] = {}
        #: The adapters among them that were loaded while the system serves.
        self.loaded_adapters: Mapping[str, AdapterRecord] = {}
        self._stored_adapters: Mapping[str, AdapterRecord] = {}
        #: Models to which the planner reports that it can add executors.
        self.growing: Mapping[str, ModelGrowth] = {}
        self._origins: dict[tuple[str, str], str] = {}
        self._kinds: dict[str, tuple[int, count[int]]] = {}
        self._replicas = ReplicaChooser(gateway, members, nearness)
        self._cells = CellChooser(members)
        self._points = ConversationPoints()
        #: Sampling of requests that name none.
        self.sampling = DefaultSampling(members)

    @property
    def plan(self) -> Plan | None:
        """The plan in force; None before the first."""
        return self._plan

    @plan.setter
    def plan(self, plan: Plan | None) -> None:
        self._plan = plan
        self._scope = PlanScope(plan) if plan is not None else None
        self._paths = {}
        self._known_stages = {}
        self._only_routes.clear()
        self._replicas.use_plan(plan)
        self._cells.use_plan(plan)
        self.sampling.use_plan(plan)
        models = plan.models if plan is not None else {}
        self.has_goals = any(model.latency_goals for model in models.values())
        self.members.use_credits(
            {(name, option): most for name, model in models.items() for option, most in model.credits.items()}
        )
        self._update_adapters()
        self._origins = {
            (name, option): model.option_origin(option)
            for name, model in models.items()
            for option, spec in model.options.items()
            if not spec.of
        }
        self._lent = {
            (name, option): _split_option(spec.of)
            for name, model in models.items()
            for option, spec in model.options.items()
            if spec.of
        }

    def use_loaded_adapters(self, adapters: Mapping[str, AdapterRecord]) -> None:
        """Serve these adapters in addition to the plan's, whose names win; those of unknown models do not serve."""
        self._stored_adapters = adapters
        self._update_adapters()

    def use_cell_shares(self, shares: Mapping[str, float]) -> None:
        """Scale the planned share of each cell by ``shares``, keyed by ``model/cell``; other cells keep theirs."""
        self._cells.use_shares(shares)
        self._paths = {}
        self._only_routes.clear()

    def _update_adapters(self) -> None:
        models = self._plan.models if self._plan is not None else {}
        planned_adapters = {adapter: name for name, model in models.items() for adapter in model.adapters}
        self.loaded_adapters = {
            name: record
            for name, record in self._stored_adapters.items()
            if record.model in models and name not in models and name not in planned_adapters
        }
        self.adapter_bases = planned_adapters | {name: record.model for name, record in self.loaded_adapters.items()}

    def path_shares(self) -> dict[tuple[str, str, str], float]:
        """Return the planned share of each path in its type's requests.

        The keys are model, type and path. Contains only types that have arrived.
        """
        shares: dict[tuple[str, str, str], float] = {}
        for (model, kind), paths in self._paths.items():
            total = sum(path.rate for path in paths)
            shares |= {(model, kind, path.name): path.rate / total for path in paths if total > 0}
        return shares

    def get_model(self, name: str) -> ModelPlan:
        """Return a model. Raises ``NotFound`` with the known names, ``StageUnavailable`` before the first plan."""
        models = self._require_scope().plan.models
        if name not in models:
            own = [each for each, model in models.items() if not model.apps]
            known_names = ", ".join(sorted([*own, *self.adapter_bases])) or "none"
            raise NotFound(f"unknown model {name!r} (known: {known_names})", param="model")
        return models[name]

    def base_model(self, name: str) -> str:
        """Return the model that ``name`` is an adapter of; any other name unchanged."""
        return self.adapter_bases.get(name, name)

    def _require_scope(self) -> PlanScope:
        if self._scope is None:
            raise StageUnavailable("the planner has written no plan yet: try again in a moment", stage="planner")
        return self._scope

    def assign(self, nodes: Sequence[GraphNode], model: str = "") -> Assignment:
        """Assign each node to the model that runs it; ``model`` gets every node that it binds.

        Send the ``nodes`` of the result. Raises as ``get_model`` does, ``StageUnavailable`` with the unit task that no
        plan runs, and ``BadRequest`` for an empty graph.
        """
        if model:
            self.get_model(model)
        return self._require_scope().assign(nodes, model)

    def issue_ticket(self, model: str, kind: str, id: str = "", cache_key: str = "") -> InvocationTicket:
        """Take the next number of ``kind`` to ``model``.

        Both are an assignment's, one or several. Pass ``id`` if the invocation was named before its kind was known.
        """
        key = f"{model}/{kind}"
        if key not in self._kinds:
            self._kinds[key] = (len(self._kinds), count())
        index, numbers = self._kinds[key]
        number = next(numbers)
        return InvocationTicket(id or self.new_id(f"{index:x}"), kind, number, cache_key)

    def new_id(self, of: str) -> str:
        """Create an id of this gateway for the purpose ``of``.

        It is random: a counter would show each client how many requests the others send."""
        return f"{self.gateway}-{of}-{urandom(8).hex()}"

    def choose_path(self, part: ModelPart, ticket: InvocationTicket) -> Path:
        """Return the path of this part; deterministic in the number and plan seed."""
        return plans.choose_path(self.find_paths(part), self._choice_point(part, ticket))

    def _choice_point(self, part: ModelPart, ticket: InvocationTicket) -> float:
        point = plans.request_point(self.gateway, part.salt, ticket.number, self._require_scope().plan.seed)
        return self._points.find_point(part.model, ticket.cache_key, point) if ticket.cache_key else point

    def find_paths(self, part: ModelPart) -> tuple[Path, ...]:
        """Return the paths that serve ``part``, without candidates in shadow.

        Those serve no requests, even as a fallback. Raises ``StageUnavailable`` if the plan has none."""
        key = (part.model, part.kind)
        paths = self._paths.get(key)
        if paths is None:
            paths = tuple([path for path in self.find_all_paths(part) if path.rate > 0 or not path.is_candidate])
            paths = self._cells.scale_paths(part.model, paths)
            if not paths:
                raise StageUnavailable(
                    f"no path of {part.model} runs {part.kind or '+'.join(sorted(part.used))}: declare one",
                    stage=part.components[0],
                )
            self._paths[key] = paths
        return paths

    def find_all_paths(self, part: ModelPart) -> tuple[Path, ...]:
        """Return all paths that run ``part``, including those of candidates."""
        model = self.get_model(part.model)
        return model.paths_for(part.used) if part.used <= frozenset(model.components) else ()

    def route(
        self,
        assignment: Assignment,
        ticket: InvocationTicket,
        exclude: frozenset[str] = NOBODY,
        pinned: str = "",
        pins: Sequence[str] = (),
        work: Sequence[int] = (),
        preferred: Mapping[str, str] = NO_PATHS,
    ) -> ExecutorRoute:
        """Return a route per part: the planned path if its stages are alive, else another of its type.

        One executor runs all nodes of an option. Items of separate encoders are spread: each goes to a replica that
        cached it, else to the least loaded one (``omnibus_gateway.routing.replicas``). ``preferred`` maps a model to
        a path that replaces the planned one. ``pinned`` names the only path, and ``work`` is in tokens per node, else
        1. ``pins`` restrict the path per node (``omnibus_gateway.routing.paths``). Raises ``StageUnavailable`` with
        the stage that blocks every path, and ``BadRequest`` for a pin that the plan does not have.
        """
        if len(assignment.parts) > 1 and pinned:
            check_names(pinned, assignment.parts)
        if pins and len(pins) != len(assignment.nodes):
            raise BadRequest(f"{len(pins)} pins for {len(assignment.nodes)} nodes: give one for each, empty for none")

        if self._nearness is not None and self._nearness.any_cut:
            again = partial(
                self._find_route,
                assignment,
                ticket,
                pinned_path=pinned,
                pins=pins,
                work=work,
                preferred_paths=preferred,
            )
            return self._nearness.avoid_cuts(assignment.nodes, again, exclude)
        return self._find_route(assignment, ticket, exclude, pinned, pins, work, preferred)

    def _find_route(
        self,
        assignment: Assignment,
        ticket: InvocationTicket,
        exclude: frozenset[str],
        pinned_path: str,
        pins: Sequence[str],
        work: Sequence[int],
        preferred_paths: Mapping[str, str],
    ) -> ExecutorRoute:
        parts = assignment.parts
        free = not (exclude or pinned_path or any(pins))
        if free and (cached_route := self._only_routes.find(assignment, work)) is not None:
            return cached_route
        several = len(parts) > 1
        options = [""] * len(assignment.nodes)
        chosen_replicas = [ChosenReplica("", 0)] * len(options)
        names = []
        only: list[ExecutorEntry] = []
        for part in parts:
            candidates = self._candidate_paths(
                part, ticket, pinned_path, pins, several, preferred_paths.get(part.model, "")
            )
            path, serving = self._first_live_path(part, candidates, exclude)
            free = free and len(candidates) == 1
            names.append(f"{part.model}={path.name}" if several else path.name)
            for option, indexes in self._stages(part, path).items():
                name = f"{part.model}/{option}" if several else option
                free = free and self._replicas.is_only(part.model, option, serving[option])
                only += serving[option]
                replicas = self._replicas.place_nodes(
                    part.model,
                    option,
                    assignment.nodes,
                    indexes,
                    work,
                    serving[option],
                    chosen_replicas,
                    ticket.cache_key,
                )
                for node, one in zip(indexes, replicas, strict=True):
                    options[node], chosen_replicas[node] = name, one
        executors, counts = zip(*chosen_replicas, strict=True)
        route = ExecutorRoute(",".join(names), tuple(options), executors, counts)
        if free:
            self._only_routes.keep(assignment, work, only, route)
        return route

    def _stages(self, part: ModelPart, path: Path) -> Mapping[str, Sequence[int]]:
        """Return the nodes of ``part`` by option on ``path``; cached per plan."""
        key = (part, path.name)
        stages = self._known_stages.get(key)
        if stages is None:
            if len(self._known_stages) >= MAX_CACHED_SHAPES:
                self._known_stages.clear()
            stages = self._known_stages[key] = {}
            for node, component in zip(part.nodes, part.components, strict=True):
                stages.setdefault(path.options[component], []).append(node)
        return stages

    def longest_wait(self, assignment: Assignment) -> float:
        """Return the seconds that a request may wait before it misses a goal of its type; infinite without goals."""
        models = self._plan.models if self._plan is not None else {}
        known = [part for part in assignment.parts if part.model in models]
        return min([models[part.model].longest_wait(part.used) for part in known], default=inf)

    def path_pools(self, part: ModelPart, path: Path) -> tuple[tuple[str, str], ...]:
        """Return the model and option of each stage's executors on ``path``."""
        return tuple(
            [self._lent.get((part.model, option), (part.model, option)) for option in self._stages(part, path)]
        )

    def conversation_path(self, part: ModelPart, conversation: str, paths: Sequence[Path]) -> Path:
        """Return the one of ``paths`` that turns of ``conversation`` take; its hash decides the first time."""
        point = zlib.crc32(conversation.encode()) / (1 << 32)
        return plans.choose_path(paths, self._points.find_point(part.model, conversation, point))

    def admissible_paths(self, part: ModelPart, pinned_path: str, pins: Sequence[str], several: bool) -> Sequence[Path]:
        """Return the paths that ``part``, one of ``several`` or not, may take. Raises as ``route``."""
        paths: Sequence[Path] = self.find_paths(part)
        if pinned_path:
            paths = find_named_paths(self.find_all_paths(part), part, pinned_path, several)
        if any(pins):
            paths = filter_by_pins(paths, part, pins, frozenset(self.get_model(part.model).encoders.values()))
        return paths

    def _candidate_paths(
        self,
        part: ModelPart,
        ticket: InvocationTicket,
        pinned_path: str,
        pins: Sequence[str],
        several: bool,
        preferred_path: str,
    ) -> Sequence[Path]:
        """Return the planned or preferred path, then the others."""
        paths = self.admissible_paths(part, pinned_path, pins, several)
        if len(paths) == 1 and paths[0].rate > 0:
            return paths
        first = next((path for path in paths if path.name == preferred_path), None) if preferred_path else None
        if first is None:
            if (pinned_path or any(pins)) and not any(path.rate > 0 for path in paths):
                return paths  # a client may name a path that has no planned rate
            first = plans.choose_path(paths, self._choice_point(part, ticket))
            if part.model in self._cells.models:
                first = self._cells.choose_cell(part.model, first, paths)
        return [first, *[path for path in paths if path is not first]]

    def _first_live_path(
        self, part: ModelPart, candidates: Sequence[Path], exclude: frozenset[str]
    ) -> tuple[Path, dict[str, list[ExecutorEntry]]]:
        """Return the first path whose options all have executors, and those executors.

        Executors with as many requests as the plan allows count only if each path has an option without others.
        """
        missing: list[list[str]] = []
        full: tuple[Path, dict[str, list[ExecutorEntry]]] | None = None
        for path in candidates:
            serving = {
                option: self._comparable_executors(part.model, option, exclude) for option in self._stages(part, path)
            }
            if all(serving.values()):
                if self.members.has_credits:
                    full = full or (path, serving)
                    serving = {option: _with_credit(members) for option, members in serving.items()}
                    if not all(serving.values()):
                        continue
                if path is not candidates[0] and part.model in self._cells.models:
                    self._cells.note_fallback(part.model, candidates[0], path)
                return path, serving
            missing.append([component for component in part.used if not serving[path.options[component]]])
        if full is not None:
            return full
        ordered_components = [component for component in part.components if component in missing[0]]
        stage = next(
            (name for name in ordered_components if all(name in missing_components for missing_components in missing)),
            ordered_components[0],
        )
        raise StageUnavailable(f"no live executor for stage {stage!r} of {part.model}: start one, or wait", stage=stage)

    def route_by_options(
        self,
        model: str,
        nodes: Sequence[GraphNode],
        options: Sequence[str],
        exclude: frozenset[str] = NOBODY,
        work: Sequence[int] = (),
    ) -> ExecutorRoute:
        """Return a route through the recorded ``options`` of ``nodes``.

        Raises ``NotFound`` for an unknown model and ``StageUnavailable`` for an option without an executor.
        """
        own: dict[str, list[int]] = {}
        for index, option in enumerate(options):
            own.setdefault(option, []).append(index)
        chosen_replicas = [ChosenReplica("", 0)] * len(options)
        through: dict[str, list[str]] = {}
        for option, indexes in own.items():
            first = nodes[indexes[0]]
            name = first.model or model
            plain = option.removeprefix(f"{name}/") if first.model else option
            self.get_model(name)
            through.setdefault(name, []).append(plain)
            serving = self._comparable_executors(name, plain, exclude)
            if not serving:
                raise StageUnavailable(
                    f"no live executor of option {plain!r} of {name}: start one", stage=first.component
                )
            replicas = self._replicas.place_nodes(name, plain, nodes, indexes, work, serving, chosen_replicas)
            for node, one in zip(indexes, replicas, strict=True):
                chosen_replicas[node] = one
        several = len(through) > 1
        names = [
            f"{name}={'>'.join(option_names)}" if several else ">".join(option_names)
            for name, option_names in sorted(through.items())
        ]
        executors, counts = zip(*chosen_replicas, strict=True)
        return ExecutorRoute(",".join(names), tuple(options), executors, counts)

    def serving_executors(self, model: str, option: str, exclude: frozenset[str] = NOBODY) -> list[ExecutorEntry]:
        """Return the executors that can accept requests to ``option`` of ``model`` now."""
        served_option = self._served_option(model, option)
        fit = self.members.serving_executors(*served_option, exclude, self._origins.get(served_option, ""))
        return fit if self._nearness is None else self._nearness.without_draining(fit)

    def _comparable_executors(self, model: str, option: str, exclude: frozenset[str]) -> list[ExecutorEntry]:
        """Return ``serving_executors`` for one request: a sample of those of a large option."""
        served_option = self._served_option(model, option)
        origin = self._origins.get(served_option, "")
        comparable = self.members.comparable_executors(*served_option, exclude, origin)
        if self._nearness is None or not self._nearness.any_draining:
            return comparable
        return self._nearness.without_draining(comparable) or self.serving_executors(model, option, exclude)

    def _served_option(self, model: str, option: str) -> tuple[str, str]:
        """Return the model and option whose executors serve ``option`` of ``model``."""
        served_option = self._lent.get((model, option))
        if served_option is None:
            # The plan that lent it may be gone while the lender remains.
            is_planned = "/" not in option or option in self.get_model(model).options
            served_option = (model, option) if is_planned else _split_option(option)
        return served_option

    def stage_states(self, model: str) -> dict[str, str]:
        """Return the state of each served component, by own or lenders' executors: ``ok`` or the fault."""
        states = self.members.stage_states(model)
        for option, spec in self.get_model(model).options.items():
            lender = self._lent.get((model, option))
            if lender is not None and (state := self.members.option_state(*lender)):
                for component in spec.components:
                    if states.get(component) != "ok":
                        states[component] = state
        return states


def _with_credit(members: list[ExecutorEntry]) -> list[ExecutorEntry]:
    """Return ``members`` of one option with fewer requests than the plan allows."""
    if isinstance(members, ExecutorSample):
        return members.find_free()
    return [each for each in members if each.available_credit > 0] if members[0].pool.credits else members


def _split_option(option: str) -> tuple[str, str]:
    """Split ``model/option``; model names may contain slashes."""
    model, _, own = option.rpartition("/")
    return model, own
