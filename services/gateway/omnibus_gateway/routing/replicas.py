"""Choice of the replica of each stage: by outstanding work, encoder caches and nearness.

Choice of a replica by affinity: an encoder that cached the item, or the least loaded one.

Executors cache recent encodings, and encode equal items that arrive together once. So an item goes to the replica
that last received an equal one from this gateway, unless that replica has much more work than others. A new item goes
to a replica with the least work. A hash of the item breaks ties, so gateways agree without communication. The items of
a request are spread one by one, each on top of those before it. No replica is queried: one without the item encodes it.

A new item that begins like an earlier one goes to the same replica, if that is among the least loaded. An encoder may
have cached the parts of an audio stream that continues.

Method: rendezvous hashing (Thaler and Ravishankar), with bounded loads as in Mirrokni, Thorup and Zadimoghaddam.

Preference for executors on the node that holds their inputs.

A reader views a tensor on its own node, and copies one from another node over the network. So among executors with
nearly the same work, the gateway prefers the node that holds most of the inputs. Inputs lie on the executors of earlier
stages, or on this gateway's node, which holds the client's media. Otherwise work decides: queueing after another
request costs more than most transfers. Draining nodes, and pairs of nodes that cannot reach each other, are avoided if
there is a choice.
"""

import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol, TypeVar

from omnibus.cluster.nodes import NodeDirectory
from omnibus.errors import StageUnavailable
from omnibus.graph import GraphNode
from omnibus.plan import Plan
from omnibus_gateway.routing.executors import ExecutorEntry, ExecutorTable
from omnibus_gateway.routing.pools import SAMPLE_SIZE, ExecutorSample

#: Replicas whose work differs by less than this fraction of an item count as equal.
NEAR_WORK_FRACTION = 0.5
#: Items by which the work of the replica that cached one may exceed the least.
MAX_EXCESS_ITEMS = 8.0
#: The fraction of its work that an item counts for on a replica that cached it.
CACHED_WORK_FRACTION = 1 / 16
#: Key of the digest of how an item begins, in the reference to its bytes.
BEGINNING = "beginning"
#: Items and beginnings of items whose replica is remembered.
MAX_TRACKED_ITEMS = 1 << 16


class AffinityItem(NamedTuple):
    """An item to encode: its key, its work in tokens, and the key of its beginning.

    ``key`` is equal for equal contents, and empty if the content is unknown. ``beginning`` is equal for contents that
    begin alike, and empty if unknown. ``homes`` are the replicas that the key names if an option is large: all gateways
    prefer them.
    """

    key: str
    work: float
    beginning: str = ""
    homes: tuple[str, ...] = ()


def affinity_item(node: GraphNode, work: float) -> AffinityItem:
    """Return the item of ``node``; without a key if it reads other nodes, which its digest does not cover."""
    if node.uses:
        return AffinityItem("", work)
    media = node.inputs.get("media")
    beginning = media.get(BEGINNING) if isinstance(media, dict) else None
    return AffinityItem(node.digest, work, f"{node.component} {beginning}" if beginning else "")


class ChosenReplica(NamedTuple):
    """A replica and the tokens that the item counts for there."""

    executor: str
    work: float


def pick_replica(
    loads: Mapping[str, float], item: AffinityItem, known_executor: str = "", preferred_ids: Collection[str] = ()
) -> ChosenReplica:
    """Choose a replica for ``item``; ``loads`` are in tokens (at least one).

    ``known_executor`` received an equal item. ``preferred_ids`` replicas come first among those with nearly the least
    work.
    """
    least = min(loads.values())
    if known_executor in loads and loads[known_executor] <= least + MAX_EXCESS_ITEMS * item.work:
        return ChosenReplica(known_executor, CACHED_WORK_FRACTION * item.work)
    near = [id for id, load in loads.items() if load <= least + NEAR_WORK_FRACTION * item.work]
    near = [id for id in near if id in preferred_ids] or near
    return ChosenReplica(
        near[0] if len(near) == 1 else max(near, key=lambda id: _rendezvous_weight(item.key, id)), item.work
    )


class EncoderAffinity:
    """Map of items to the replicas that received them; evicts the least recently sent."""

    def __init__(self, capacity: int = MAX_TRACKED_ITEMS) -> None:
        self._remembered = capacity
        self._sent: OrderedDict[str, str] = OrderedDict()

    def assign_items(
        self, loads: dict[str, float], items: Sequence[AffinityItem], preferred_ids: Collection[str] = ()
    ) -> list[ChosenReplica]:
        """Choose a replica for each of ``items``, and update ``loads``.

        An item without a key goes to the least loaded replica; ``preferred_ids`` replicas win ties.
        """
        replicas = []
        for item in items:
            if item.key:
                alike = self._sent.get(item.beginning, "")
                preferred = (alike,) if alike else preferred_ids or item.homes
                replica = pick_replica(loads, item, self._sent.get(item.key, ""), preferred)
                self._remember_executor(item.key, replica.executor)
                if item.beginning:
                    self._remember_executor(item.beginning, replica.executor)
            else:
                least = min(loads, key=lambda id: (loads[id], id not in preferred_ids))
                replica = ChosenReplica(least, item.work)
            loads[replica.executor] += replica.work
            replicas.append(replica)
        return replicas

    def known_executors(self, items: Iterable[AffinityItem]) -> list[str]:
        """Return the replicas that received ``items``, or items that begin like them."""
        sent = self._sent
        return [sent[key] for item in items for key in (item.key, item.beginning) if key in sent]

    def _remember_executor(self, key: str, executor: str) -> None:
        self._sent[key] = executor
        self._sent.move_to_end(key)
        if len(self._sent) > self._remembered:
            self._sent.popitem(last=False)


class ConversationAffinity:
    """Map of conversations to the executors that cached their last prompts.

    A turn goes elsewhere if that executor has more work than the least busy one plus this prompt.
    """

    def __init__(self, capacity: int = MAX_TRACKED_ITEMS) -> None:
        self._remembered = capacity
        self._sent: OrderedDict[str, str] = OrderedDict()

    def choose_executor(
        self, loads: Mapping[str, float], conversation: str, work: float, preferred_ids: Collection[str] = ()
    ) -> str:
        """Choose an executor for a prompt of ``work`` tokens; ``loads`` are in tokens (at least one).

        A new conversation goes to a least loaded executor; ``preferred_ids`` executors win ties.
        """
        executor, least = self._sent.get(conversation, ""), min(loads.values())
        if executor not in loads or loads[executor] > least + work:
            idle = [id for id, load in loads.items() if load <= least]
            idle = [id for id in idle if id in preferred_ids] or idle
            executor = max(idle, key=lambda id: _rendezvous_weight(conversation, id))  # gateways agree
        self._sent[conversation] = executor
        self._sent.move_to_end(conversation)
        if len(self._sent) > self._remembered:
            self._sent.popitem(last=False)
        return executor

    def known_executor(self, conversation: str) -> str:
        """Return the executor of the last turn of ``conversation``; empty before the first."""
        return self._sent.get(conversation, "")


class ConversationPoints:
    """Map of conversations to their points in a model's path distribution.

    The first turn gets its point like any request. Later turns reuse it and take the same paths, where the conversation
    is cached.
    """

    def __init__(self, capacity: int = MAX_TRACKED_ITEMS) -> None:
        self._remembered = capacity
        self._points: OrderedDict[tuple[str, str], float] = OrderedDict()

    def find_point(self, model: str, conversation: str, point: float) -> float:
        """Return the point in [0, 1) of ``conversation``; ``point`` if the conversation is new."""
        conversation_point = self._points.setdefault((model, conversation), point)
        self._points.move_to_end((model, conversation))
        if len(self._points) > self._remembered:
            self._points.popitem(last=False)
        return conversation_point


def _rendezvous_weight(key: str, executor: str) -> bytes:
    return blake2b(f"{key}/{executor}".encode(), digest_size=8).digest()


#: Cuts that one search for a route avoids: each doubles the number of routes to try.
_MAX_AVOIDED_CUTS = 4


class Route(Protocol):
    """The executor of each node of a graph."""

    @property
    def executors(self) -> tuple[str, ...]: ...


_Route = TypeVar("_Route", bound=Route)


class Nearness:
    """Chooses among executors by the location of their inputs."""

    def __init__(self, home: str, members: ExecutorTable, nodes: NodeDirectory, slack: float) -> None:
        """Configure the gateway's node, ``home``, and the tolerance for a higher load.

        ``slack`` is the work by which a near executor may exceed the least, in mean invocations of its option.
        """
        self._home = home
        self._members = members
        self._nodes = nodes
        self._slack = slack

    @property
    def any_draining(self) -> bool:
        """True while a node drains."""
        return bool(self._nodes.draining)

    def without_draining(self, members: list[ExecutorEntry]) -> list[ExecutorEntry]:
        """Drop executors on draining nodes, unless there are no others."""
        draining = self._nodes.draining
        if draining and isinstance(members, ExecutorSample):  # empty if all of it drain: the caller knows the others
            members.avoid_nodes(draining)
            return members
        return [member for member in members if member.status.node not in draining] or members if draining else members

    def count_sources(
        self, nodes: Sequence[GraphNode], readers: Sequence[int], executors: Sequence[str]
    ) -> Mapping[str, int]:
        """Count the inputs of the graph nodes ``readers`` by machine, if known.

        Inputs of the request itself lie on the gateway's node. Inputs from stages that are not placed yet do not count.
        """
        sources: Counter[str] = Counter()
        for reader in readers:
            if not nodes[reader].uses:
                sources[self._home] += 1
            for source, _ in nodes[reader].uses:
                member = self._members.get(executors[source])
                if member is not None:
                    sources[member.status.node] += 1
        return sources

    def near_executors(
        self, serving: Sequence[ExecutorEntry], loads: Mapping[str, float], sources: Mapping[str, int]
    ) -> list[str]:
        """Return the executors with most of ``sources`` among the least loaded.

        ``sources`` counts inputs by node, ``loads`` is the work. The result is not empty, and in the order of
        ``loads``. Executors with the least work are always candidates.
        """
        least = min(loads.values())
        limit = least + self._slack * serving[0].pool.mean_work
        nodes = {member.status.id: member.status.node for member in serving}
        close = [id for id, load in loads.items() if load < limit or load == least]
        most = max(sources.get(nodes[id], 0) for id in close)
        return [id for id in close if sources.get(nodes[id], 0) == most]

    # Nodes that cannot reach each other

    @property
    def any_cut(self) -> bool:
        """True while a pair of nodes cannot reach each other."""
        return bool(self._nodes.cuts)

    def avoid_cuts(
        self, nodes: Sequence[GraphNode], find_route: Callable[[frozenset[str]], _Route], exclude: frozenset[str]
    ) -> _Route:
        """Return a route whose nodes can all reach each other; the first route if there is none.

        ``find_route`` excludes the executors passed to it, ``exclude`` at first. Its errors propagate.
        """
        first = find_route(exclude)
        return self._avoid_cuts(nodes, find_route, first, exclude, _MAX_AVOIDED_CUTS) or first

    def _avoid_cuts(
        self,
        nodes: Sequence[GraphNode],
        find_route: Callable[[frozenset[str]], _Route],
        route: _Route,
        exclude: frozenset[str],
        depth: int,
    ) -> _Route | None:
        cut = self._find_cut(nodes, route.executors)
        if cut is None:
            return route
        reader, source = cut
        for node in (source, reader):
            without = exclude | self._members.executors_on(node)
            if without == exclude or not depth:
                continue
            try:
                other = find_route(without)
            except StageUnavailable:
                continue
            other_route = self._avoid_cuts(nodes, find_route, other, without, depth - 1)
            if other_route is not None:
                return other_route
        return None

    def _find_cut(self, nodes: Sequence[GraphNode], executors: Sequence[str]) -> tuple[str, str] | None:
        """Return the first cut pair of nodes (reader, source) of a route; None without any."""
        members = [self._members.get(executor) for executor in executors]
        places = [member.status.node if member is not None else self._home for member in members]
        for graph_node, reader in zip(nodes, places, strict=True):
            pairs = [(reader, places[source]) for source, _ in graph_node.uses] or [(reader, self._home)]
            for pair in (*pairs, (self._home, reader)):
                if pair[0] != pair[1] and pair in self._nodes.cuts:
                    return pair
        return None


def are_apart(members: Sequence[ExecutorEntry]) -> bool:
    """Return True if ``members`` are on more than one node."""
    return len({member.status.node for member in members}) > 1


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
        homes: Sequence[str] = ()
        if isinstance(serving, ExecutorSample):
            items, homes = self._include_affine(serving, items, encode, sources or {}, conversation)
        if encode:
            serving = [member for member in serving if member.available_credit > 0] or serving
        loads = self._members.work_by_executor(serving, self._turn)
        near: Sequence[str] = ()
        if self._nearness is not None and sources is not None:
            near = self._nearness.near_executors(serving, loads, sources)
        if conversation:
            total = sum(item.work for item in items)
            executor = self._conversations.choose_executor(loads, conversation, total, near or homes)
            return [ChosenReplica(executor, item.work) for item in items]
        if not encode:
            executor = min(near or loads, key=loads.__getitem__)
            return [ChosenReplica(executor, item.work) for item in items]
        if not all(member.status.keeps for member in serving):
            items = [item._replace(key="") for item in items]
        return self._spread.assign_items(loads, items, near)

    def _include_affine(
        self,
        sample: ExecutorSample,
        items: Sequence[AffinityItem],
        encode: bool,
        sources: Mapping[str, int],
        conversation: str,
    ) -> tuple[Sequence[AffinityItem], Sequence[str]]:
        """Add the executors near ``sources``, and those that cached ``items`` or ``conversation`` or will.

        Returns the items with their homes, and the homes of the conversation.
        """
        pool = sample.pool
        for node in sources:
            sample.include(pool.members_on(node)[:SAMPLE_SIZE])
        known = self._spread.known_executors(items) if encode else [self._conversations.known_executor(conversation)]
        sample.include([pool.members[id] for id in known if id in pool.members])
        if not encode:
            return items, _include_homes(sample, conversation) if conversation else ()
        homes = [_include_homes(sample, item.key) if item.key else () for item in items]
        return [item._replace(homes=ids) for item, ids in zip(items, homes, strict=True)], ()

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


def _include_homes(sample: ExecutorSample, key: str) -> tuple[str, ...]:
    """Add the executors that ``key`` names to ``sample``; returns their ids."""
    homes = sample.pool.key_members(key)
    sample.include(homes)
    return tuple([member.status.id for member in homes])
