"""Choice of a replica by affinity: an encoder that cached the item, or the least loaded one.

Executors cache recent encodings, and encode equal items that arrive together once. So an item goes to the replica
that last received an equal one from this gateway, unless that replica has much more work than others. A new item goes
to a replica with the least work. A hash of the item breaks ties, so gateways agree without communication. The items of
a request are spread one by one, each on top of those before it. No replica is queried: one without the item encodes it.

A new item that begins like an earlier one goes to the same replica, if that is among the least loaded. An encoder may
have cached the parts of an audio stream that continues.

Method: rendezvous hashing (Thaler and Ravishankar), with bounded loads as in Mirrokni, Thorup and Zadimoghaddam.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from omnibus.graph import GraphNode

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
    begin alike, and empty if unknown.
    """

    key: str
    work: float
    beginning: str = ""


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
                replica = pick_replica(loads, item, self._sent.get(item.key, ""), (alike,) if alike else preferred_ids)
                self._remember_executor(item.key, replica.executor)
                if item.beginning:
                    self._remember_executor(item.beginning, replica.executor)
            else:
                least = min(loads, key=lambda id: (loads[id], id not in preferred_ids))
                replica = ChosenReplica(least, item.work)
            loads[replica.executor] += replica.work
            replicas.append(replica)
        return replicas

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
