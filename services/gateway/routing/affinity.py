"""Choice of the encoder replica that gets an item: one that knows it, else the one with the least work.

Executors keep what they have encoded lately, and encode equal items once that come together. So an item goes
where this gateway sent an equal one last, unless that replica has much more to do than others. An item that
was not seen goes to a replica with the least work; among equals a hash of the item decides, so that gateways
that know nothing of each other agree. A request's items are spread one by one, each on top of those before it.
Nothing is asked of anybody: who forgot an item, or never had it, encodes it.

What was not seen, but begins as something that was, goes where that went, of the replicas with the least work: an
encoder may have kept the parts of a sound that goes on.

Method: rendezvous hashing (Thaler and Ravishankar), with bounded loads as in Mirrokni, Thorup and Zadimoghaddam.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from omnibus.graph import GraphNode

#: Replicas whose work differs by less than this part of an item count as equal.
NEAR_WORK_FRACTION = 0.5
#: Items by which the work of the replica that knows one may exceed the least.
MAX_EXCESS_ITEMS = 8.0
#: The part of its work that an item counts for where it is known.
CACHED_WORK_FRACTION = 1 / 16
#: Name of the digest of how an item begins, in what says where its bytes are.
BEGINNING = "beginning"
#: Items whose replica is remembered, and beginnings of items.
MAX_TRACKED_ITEMS = 1 << 16


class AffinityItem(NamedTuple):
    """``key`` is equal for equal contents, empty when the content is not known; ``work`` is in tokens. ``beginning`` is
    equal for contents that begin alike, empty where nobody has said how they begin."""

    key: str
    work: float
    beginning: str = ""


def affinity_item(node: GraphNode, work: float) -> AffinityItem:
    """Return the item of ``node``, without a key if it reads other nodes: its digest does not cover what it reads."""
    if node.uses:
        return AffinityItem("", work)
    media = node.inputs.get("media")
    beginning = media.get(BEGINNING) if isinstance(media, dict) else None
    return AffinityItem(node.digest, work, f"{node.component} {beginning}" if beginning else "")


class ChosenReplica(NamedTuple):
    """The replica and what the item counts for there, in tokens."""

    executor: str
    work: float


def pick_replica(
    loads: Mapping[str, float], item: AffinityItem, known: str = "", preferred: Collection[str] = ()
) -> ChosenReplica:
    """The replica for ``item``, of those with ``loads`` in tokens (at least one).

    ``known`` was sent an equal one. ``preferred`` go first among those with nearly the least work.
    """
    least = min(loads.values())
    if known in loads and loads[known] <= least + MAX_EXCESS_ITEMS * item.work:
        return ChosenReplica(known, CACHED_WORK_FRACTION * item.work)
    near = [id for id, load in loads.items() if load <= least + NEAR_WORK_FRACTION * item.work]
    near = [id for id in near if id in preferred] or near
    return ChosenReplica(
        near[0] if len(near) == 1 else max(near, key=lambda id: _rendezvous_weight(item.key, id)), item.work
    )


class EncoderAffinity:
    """Remembers what was sent where; the least recently sent is forgotten first."""

    def __init__(self, remembered: int = MAX_TRACKED_ITEMS) -> None:
        self._remembered = remembered
        self._sent: OrderedDict[str, str] = OrderedDict()

    def assign_items(
        self, loads: dict[str, float], items: Sequence[AffinityItem], preferred: Collection[str] = ()
    ) -> list[ChosenReplica]:
        """A replica for each of ``items``; ``loads`` grow by what they are given. Without a key the first with the
        least gets it, of the ``preferred`` if they have no more.
        """
        found = []
        for item in items:
            if item.key:
                alike = self._sent.get(item.beginning, "")
                chosen = pick_replica(loads, item, self._sent.get(item.key, ""), (alike,) if alike else preferred)
                self._remember_executor(item.key, chosen.executor)
                if item.beginning:
                    self._remember_executor(item.beginning, chosen.executor)
            else:
                least = min(loads, key=lambda id: (loads[id], id not in preferred))
                chosen = ChosenReplica(least, item.work)
            loads[chosen.executor] += chosen.work
            found.append(chosen)
        return found

    def _remember_executor(self, key: str, executor: str) -> None:
        self._sent[key] = executor
        self._sent.move_to_end(key)
        if len(self._sent) > self._remembered:
            self._sent.popitem(last=False)


class ConversationAffinity:
    """Remembers where the last prompt of each conversation was computed: there the next turn finds what is kept of it.

    It goes elsewhere where that executor has more to do than the least busy one and this prompt together.
    """

    def __init__(self, remembered: int = MAX_TRACKED_ITEMS) -> None:
        self._remembered = remembered
        self._sent: OrderedDict[str, str] = OrderedDict()

    def choose_executor(
        self, loads: Mapping[str, float], conversation: str, work: float, preferred: Collection[str] = ()
    ) -> str:
        """One of those with ``loads`` in tokens (at least one) for a prompt of ``work`` tokens; a new conversation
        goes to one with the least, of the ``preferred`` if they have no more."""
        known, least = self._sent.get(conversation, ""), min(loads.values())
        if known not in loads or loads[known] > least + work:
            idle = [id for id, load in loads.items() if load <= least]
            idle = [id for id in idle if id in preferred] or idle
            known = max(idle, key=lambda id: _rendezvous_weight(conversation, id))  # gateways agree
        self._sent[conversation] = known
        self._sent.move_to_end(conversation)
        if len(self._sent) > self._remembered:
            self._sent.popitem(last=False)
        return known


class ConversationPoints:
    """Remembers which share of a model's requests each conversation belongs to: its first turn is counted out among
    all requests, and the others take the same paths, where what was computed of it is kept."""

    def __init__(self, remembered: int = MAX_TRACKED_ITEMS) -> None:
        self._remembered = remembered
        self._points: OrderedDict[tuple[str, str], float] = OrderedDict()

    def find_point(self, model: str, conversation: str, point: float) -> float:
        """The point in [0, 1) of ``conversation``, which is ``point`` if it is new."""
        found = self._points.setdefault((model, conversation), point)
        self._points.move_to_end((model, conversation))
        if len(self._points) > self._remembered:
            self._points.popitem(last=False)
        return found


def _rendezvous_weight(key: str, executor: str) -> bytes:
    return blake2b(f"{key}/{executor}".encode(), digest_size=8).digest()
