"""Choice of the replica of each stage: by outstanding work, encoder caches and nearness."""

import zlib
from collections.abc import Mapping, Sequence

from omnibus.graph import GraphNode
from omnibus.plan import Plan
from omnibus_gateway.routing.affinity import (
    AffinityItem,
    ChosenReplica,
    ConversationAffinity,
    EncoderAffinity,
    affinity_item,
)
from omnibus_gateway.routing.executors import ExecutorEntry, ExecutorTable
from omnibus_gateway.routing.nearness import Nearness, are_apart

#: Components that compute prompts.
PREFILL_COMPONENTS = frozenset({"thinker", "prefill"})


class ReplicaChooser:
    """Chooses among the executors of ``members`` that serve an option; see ``Router``."""

    def __init__(self, gateway: str, members: ExecutorTable, nearness: Nearness | None) -> None:
        self._members = members
        self._nearness = nearness
        self._encode: frozenset[tuple[str, str]] = frozenset()
        self._prefill: frozenset[tuple[str, str]] = frozenset()
        self._spread = EncoderAffinity()
        self._conversations = ConversationAffinity()
        self._turn = zlib.crc32(gateway.encode())  # gateways begin with different replicas

    def use_plan(self, plan: Plan | None) -> None:
        """Switch to the options of ``plan``."""
        models = plan.models if plan is not None else {}
        self._encode = frozenset(
            (name, option)
            for name, model in models.items()
            for option, spec in model.options.items()
            if set(spec.components) <= set(model.encoders.values())
        )
        self._prefill = frozenset(
            (name, option)
            for name, model in models.items()
            for option, spec in model.options.items()
            if not PREFILL_COMPONENTS.isdisjoint(spec.components)
        )

    def is_only(self, model: str, option: str, serving: Sequence[ExecutorEntry]) -> bool:
        """Return True if ``option`` has exactly one executor and needs no choice.

        Encoders choose a replica for each item.
        """
        return len(serving) == 1 == len(serving[0].pool.members) and (model, option) not in self._encode

    def place_nodes(
        self,
        model: str,
        option: str,
        nodes: Sequence[GraphNode],
        indexes: Sequence[int],
        work: Sequence[int],
        serving: Sequence[ExecutorEntry],
        chosen_replicas: Sequence[ChosenReplica],
        cache_key: str = "",
    ) -> list[ChosenReplica]:
        """Choose one of ``serving`` for each of ``nodes`` at the indices ``indexes``.

        ``option`` of ``model`` runs these nodes. ``work`` is in tokens per node, and ``chosen_replicas`` are the
        executors of
        earlier nodes. ``cache_key`` names a conversation, whose prompts are cached where they were computed.
        """
        encode = (model, option) in self._encode
        if len(serving) == 1 and not encode:  # no comparison needed: measured, 4 us less per option
            only = serving[0].status.id
            return [ChosenReplica(only, work[node] if work else 1) for node in indexes]
        apart = self._nearness is not None and are_apart(serving)
        if not (encode or apart or (cache_key and (model, option) in self._prefill)):
            executor = self._members.least_loaded(serving, self._turn)
            return [ChosenReplica(executor, work[node] if work else 1) for node in indexes]
        items = [affinity_item(nodes[node], work[node] if work else 1) for node in indexes]
        conversation = f"{model}/{option} {cache_key}" if cache_key and (model, option) in self._prefill else ""
        sources = self._count_sources(nodes, indexes, chosen_replicas, serving)
        return self._choose_executors(serving, items, encode, sources, conversation)

    def _choose_executors(
        self,
        serving: Sequence[ExecutorEntry],
        items: Sequence[AffinityItem],
        encode: bool,
        sources: Mapping[str, int] | None,
        conversation: str = "",
    ) -> list[ChosenReplica]:
        """Choose one of ``serving`` (at least one) for each of ``items``.

        ``sources`` counts inputs by node, if nearness matters. A ``conversation`` returns to its last executor unless
        that one is busy.
        """
        if encode:
            serving = [member for member in serving if member.available_credit > 0] or serving
        loads = self._members.work_by_executor(serving, self._turn)
        near: Sequence[str] = ()
        if self._nearness is not None and sources is not None:
            near = self._nearness.near_executors(serving, loads, sources)
        if conversation:
            executor = self._conversations.choose_executor(loads, conversation, sum(item.work for item in items), near)
            return [ChosenReplica(executor, item.work) for item in items]
        if not encode:
            executor = min(near or loads, key=loads.__getitem__)
            return [ChosenReplica(executor, item.work) for item in items]
        if not all(member.status.keeps for member in serving):
            items = [item._replace(key="") for item in items]
        return self._spread.assign_items(loads, items, near)

    def _count_sources(
        self,
        nodes: Sequence[GraphNode],
        readers: Sequence[int],
        chosen_replicas: Sequence[ChosenReplica],
        serving: Sequence[ExecutorEntry],
    ) -> Mapping[str, int] | None:
        """Count the inputs of ``readers`` by machine; None if ``serving`` are on one machine."""
        if self._nearness is None or not are_apart(serving):
            return None
        return self._nearness.count_sources(nodes, readers, [each.executor for each in chosen_replicas])
