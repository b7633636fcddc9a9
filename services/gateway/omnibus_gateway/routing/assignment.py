"""Assignment of graph nodes to the plan models that bind their tasks.

Default sampling of requests: from the model's declaration, else from its checkpoint.

Executors report the ``generation_config.json`` of their checkpoint, wherever it is stored, in their status events.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from omnibus.bus.messages import ExecutorStatus
from omnibus.errors import BadRequest, StageUnavailable
from omnibus.graph import GraphNode
from omnibus.plan import ModelPlan, Plan, request_type
from omnibus_gateway.routing.executors import ExecutorTable

#: Shapes of graphs that are cached per plan.
MAX_CACHED_SHAPES = 2048


class ModelPart(NamedTuple):
    """The nodes of a graph that one plan model runs, with components.

    ``kind`` is the request type, ``used`` the same as a set. ``salt`` names the sequence of path choices.
    """

    model: str
    kind: str
    used: frozenset[str]
    nodes: tuple[int, ...]
    components: tuple[str, ...]
    salt: str


class Assignment(NamedTuple):
    """A graph with its nodes assigned to models.

    With one part, ``model`` and ``kind`` are those of the part (``vision+thinker``), and nodes name no model. With
    several parts, both are joined (``a+b``; ``a=vision+thinker,b=thinker``), and each node names its model. Parts are
    in the order of their models' names.
    """

    model: str
    kind: str
    parts: tuple[ModelPart, ...]
    nodes: tuple[GraphNode, ...]


class PlanScope:
    """The unit tasks that one plan binds."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._owners: dict[str, dict[str, str]] = {}
        for task, bound in plan.task_owners().items():
            owners = self._owners[task] = {}
            for model, component in sorted(bound):
                owners.setdefault(model, component)
        self._known: dict[object, tuple[Assignment, tuple[tuple[str, str], ...]]] = {}

    def assign(self, nodes: Sequence[GraphNode], model: str = "") -> Assignment:
        """Assign ``nodes``; ``model`` gets every node that it binds.

        If several models bind a unit task, the node goes to the model of its first consumer. Without one, it goes to
        the model that it names, else to the first by name. Raises ``StageUnavailable`` for a unit task that no model
        binds and ``BadRequest`` for an empty graph.
        """
        key = (model, tuple([(node.task, node.component, node.model, node.uses) for node in nodes]))
        cached_shape = self._known.get(key)
        if cached_shape is None:
            if len(self._known) >= MAX_CACHED_SHAPES:
                self._known.clear()
            cached_shape = self._known[key] = self._assign_shape(nodes, model)
        shape, bound = cached_shape
        bound_nodes = tuple([_bind_node(node, *to) for node, to in zip(nodes, bound, strict=True)])
        return Assignment(shape.model, shape.kind, shape.parts, bound_nodes)

    def _assign_shape(self, nodes: Sequence[GraphNode], model: str) -> tuple[Assignment, tuple[tuple[str, str], ...]]:
        """Return the parts and the (model, component) per node of this shape."""
        if not nodes:
            raise BadRequest("a graph needs at least one call of a unit task")
        deciders = self._decide_models(nodes, model)
        components = [owners[name] for name, owners in deciders]
        models = sorted({name for name, _ in deciders})
        several = len(models) > 1
        own = {name: [index for index, (by, _) in enumerate(deciders) if by == name] for name in models}
        used_components = {name: frozenset(components[index] for index in own[name]) for name in models}
        kinds = {name: request_type(self.plan.models[name].components, used_components[name]) for name in models}
        kind = ",".join(f"{name}={kinds[name]}" for name in models) if several else kinds[models[0]]
        whole = "+".join(models)
        parts = tuple(
            ModelPart(
                name,
                kinds[name],
                used_components[name],
                tuple(own[name]),
                tuple(components[index] for index in own[name]),
                f"{whole}/{kind}/{name}" if several else f"{whole}/{kind}",
            )
            for name in models
        )
        bound = tuple((name if several else "", part) for (name, _), part in zip(deciders, components, strict=True))
        return Assignment(whole, kind, parts, ()), bound

    def _decide_models(self, nodes: Sequence[GraphNode], model: str) -> list[tuple[str, dict[str, str]]]:
        """Return per node its model, and the component in each candidate model."""
        owners = [self._find_bindings(node, model) for node in nodes]
        node_models: dict[int, str] = {}
        for index, bound in enumerate(owners):
            if model in bound or len(bound) == 1:
                node_models[index] = model if model in bound else next(iter(bound))
        for index in reversed(range(len(nodes))):  # consumers follow their sources, so this decides them first
            if index not in node_models:
                node_models[index] = _consumer_model(index, nodes, owners[index], node_models)
        return [(node_models[index], bound) for index, bound in enumerate(owners)]

    def _find_bindings(self, node: GraphNode, model: str) -> dict[str, str]:
        """Return the component of ``node`` by model, sorted by model name."""
        bound = self._owners.get(node.task)
        if bound is not None:
            return bound
        for name in (model, node.model):
            plan = self.plan.models.get(name)
            if plan is not None and not plan.tasks and node.component in plan.components:
                return {name: node.component}  # a plan without task names matches by component
        raise StageUnavailable(
            f"no plan runs unit task {node.task!r}: declare its model, or register an app that brings it",
            stage=node.component,
        )


def _consumer_model(index: int, nodes: Sequence[GraphNode], bound: dict[str, str], node_models: dict[int, str]) -> str:
    for later in range(index + 1, len(nodes)):
        if node_models.get(later) in bound and any(source == index for source, _ in nodes[later].uses):
            return node_models[later]
    return nodes[index].model if nodes[index].model in bound else next(iter(bound))


def _bind_node(node: GraphNode, model: str, component: str) -> GraphNode:
    if node.model == model and node.component == component:
        return node
    return GraphNode(node.task, component, node.inputs, node.digest, node.uses, model, node.salt)


#: The default temperature of vLLM and of OpenAI's API.
NEUTRAL_TEMPERATURE = 1.0
#: The parameter that gives executors the default for checkpoints without one.
FALLBACK = "fallback_temperature"


class ModelSampling(msgspec.Struct, frozen=True):
    """Sampling of one model. If ``complete``, no executor can add to ``values``."""

    values: Mapping[str, float] = {}
    complete: bool = True


NEUTRAL = ModelSampling()
_UNKNOWN = ModelSampling(complete=False)


class DefaultSampling:
    """Sampling of the plan's models as ``members`` report it; cached until they change."""

    def __init__(self, members: ExecutorTable) -> None:
        self._members = members
        self._plan: Plan | None = None
        self._version = -1
        self._known: dict[str, ModelSampling] = {}

    def use_plan(self, plan: Plan | None) -> None:
        self._plan = plan
        self._known = {}

    def of_model(self, name: str) -> ModelSampling:
        """Return the sampling of the plan's model ``name``; neutral for an unknown one."""
        if self._members.version != self._version:
            self._version = self._members.version
            self._known = {}
        sampling = self._known.get(name)
        if sampling is None:
            model = None if self._plan is None else self._plan.models.get(name)
            sampling = self._known[name] = NEUTRAL if model is None else self._read_model(name, model)
        return sampling

    @property
    def unknown(self) -> ModelSampling:
        """Sampling of an app's chat, which is unknown: the models that it calls complete it."""
        return _UNKNOWN if self._members.all_take(FALLBACK) else NEUTRAL

    def _read_model(self, name: str, model: ModelPlan) -> ModelSampling:
        declared_defaults = None if model.sampling_defaults is UNSET else model.sampling_defaults
        declared_values = {} if declared_defaults is None else declared_defaults.values()
        if declared_defaults is not None and not declared_defaults.checkpoint:
            return ModelSampling(declared_values)
        parts = {(name, option) for option, spec in model.options.items() if not spec.of}
        lent = {(owner, option) for owner, _, option in (spec.of.partition("/") for spec in model.options.values())}
        executors = [each for each in self._members.statuses() if (each.model, each.option) in parts | lent]
        values = {key: value for each in executors for key, value in (each.sampling or {}).items()}
        complete = any(map(_chooses_text, executors)) or not self._members.all_take(FALLBACK)
        return ModelSampling({**values, **declared_values}, complete)


def _chooses_text(status: ExecutorStatus) -> bool:
    return any(component != "talker" for component in status.components)
