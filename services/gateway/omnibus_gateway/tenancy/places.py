"""Places at executors: their number, their tenants, and the path of the next request.

Each executor receives as many requests as it batches, counted by the option that it runs: paths that share an option
share its places. A few spare places (``omnibus.spare_places``) are reserved for tenants with nothing in service there.
So a tenant that holds all other places for long does not block the others. A single tenant may use all but these.

Among the paths with room, the next one by the planned rates is taken: start-time fair queueing of paths. A full path
does not catch up on missed turns: its turn counts from when it has room again.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import NamedTuple

from omnibus.plan import Path
from omnibus.settings import GatewaySettings
from omnibus.spare_places import count_spare_places
from omnibus_gateway.routing.assignment import Assignment
from omnibus_gateway.routing.router import Router

#: Executors of one option: its model and name.
Pool = tuple[str, str]

#: Seconds for which a count of places is valid.
CAPACITY_TTL_SECONDS = 0.25
#: Kinds of requests, and pools, that are cached.
_MAX_REMEMBERED = 4096


class PathChoice(NamedTuple):
    """A path of ``model``, and its executors."""

    model: str
    kind: str
    path: Path
    pools: tuple[Pool, ...]
    first: bool = False  # preferred if it has room


class PathTurns:
    """Order of the paths of one kind of request."""

    def __init__(self) -> None:
        self._tags: dict[str, float] = {}  # requests for each unit of a path's rate
        self._full: set[str] = set()
        self._now = 0.0  # tag of the last path

    def choose(self, choices: Sequence[PathChoice], free: Sequence[PathChoice]) -> PathChoice:
        """Take the preferred or the next one of the ``free`` ``choices``."""
        for choice in free:
            name = choice.path.name
            least = self._now if name in self._full else 0.0
            self._tags[name] = max(least, self._tags.get(name, self._now))
        path_choice = next((choice for choice in free if choice.first), None) or min(free, key=self._next_tag)
        self._full = {choice.path.name for choice in choices if choice not in free}
        self._now, self._tags[path_choice.path.name] = self._tags[path_choice.path.name], self._next_tag(path_choice)
        return path_choice

    def _next_tag(self, choice: PathChoice) -> float:
        return self._tags[choice.path.name] + 1.0 / max(choice.path.rate, 1e-9)


class ExecutorPlaces:
    """The places of one gateway, which is one of ``gateways``."""

    def __init__(
        self,
        settings: GatewaySettings,
        router: Router,
        gateways: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.router = router
        self._settings = settings
        self._gateways = gateways
        self._clock = clock
        self._used: Counter[Pool] = Counter()
        self._used_by: Counter[tuple[Pool, str]] = Counter()
        self._known: dict[Pool, tuple[float, int, int]] = {}
        self._turns: dict[tuple[str, str], PathTurns] = {}

    def path_turns(self, choice: PathChoice) -> PathTurns:
        """Return the turns of the paths for requests like that of ``choice``."""
        if len(self._turns) > _MAX_REMEMBERED:
            self._turns.clear()
        return self._turns.setdefault((choice.model, choice.kind), PathTurns())

    def is_served(self, pool: Pool) -> bool:
        """Return True if ``pool`` has an executor."""
        return self._capacity(pool)[0] > 0

    def has_room(self, pool: Pool, tenant: str, claimed_pools: Collection[Hashable]) -> bool:
        """Return True if ``pool`` may receive a request of ``tenant`` now.

        Earlier requests wait for ``claimed_pools``. A pool without executors is full once it has one request, which
        fails for that reason.
        """
        places, spare = self._capacity(pool)
        used_places = self._used[pool]
        if pool not in claimed_pools and used_places < max(1, places):
            return True
        return not self._used_by[pool, tenant] and used_places < places + spare

    def occupy(self, pools: Collection[Pool], tenant: str) -> None:
        for pool in pools:
            self._used[pool] += 1
            self._used_by[pool, tenant] += 1

    def vacate(self, pools: Collection[Pool], tenant: str) -> None:
        for pool in pools:
            self._used[pool] -= 1
            self._used_by[pool, tenant] -= 1
            if not self._used_by[pool, tenant]:
                del self._used_by[pool, tenant]

    def _capacity(self, pool: Pool) -> tuple[int, int]:
        """Return the places of ``pool`` for this gateway, and its spare places."""
        now = self._clock()
        cached_capacity = self._known.get(pool)
        if cached_capacity is None or now >= cached_capacity[0]:
            if len(self._known) > _MAX_REMEMBERED:
                self._known.clear()
            cached_capacity = self._known[pool] = (now + CAPACITY_TTL_SECONDS, *self._count_places(pool))
        return cached_capacity[1], cached_capacity[2]

    def _count_places(self, pool: Pool) -> tuple[int, int]:
        places = spare = 0
        for member in self.router.members.fit_executors(*pool):
            status = member.status
            own = self._settings.admit or status.slots or status.credits
            extra = max(0, min(count_spare_places(own), status.credits - own))
            if member.pool.credits:
                own = max(1, min(own, member.credits - extra))
            places += own
            spare += extra
        gateways = self._gateways()
        return -(-places // gateways), -(-spare // gateways)


class RequestClaim:
    """The places of a request of ``tenant``: one path for each of its models."""

    def __init__(self, places: ExecutorPlaces, tenant: str, choices: Sequence[Sequence[PathChoice]]) -> None:
        self._places = places
        self._tenant = tenant
        self._choices = choices
        self._taken: tuple[PathChoice, ...] = ()
        self.pools = frozenset(pool for paths in choices for choice in paths for pool in choice.pools)

    @property
    def paths(self) -> dict[str, str]:
        """The chosen path, by model."""
        return {choice.model: choice.path.name for choice in self._taken}

    def take(self, claimed_pools: Collection[Hashable]) -> bool:
        """Take a place at each executor of the next free path; see ``PlaceClaim``."""
        free = [[choice for choice in paths if self._has_room(choice, claimed_pools)] for paths in self._choices]
        if not all(free):
            return False
        parts = zip(self._choices, free, strict=True)
        self._taken = tuple(
            [self._places.path_turns(free_choices[0]).choose(paths, free_choices) for paths, free_choices in parts]
        )
        for choice in self._taken:
            self._places.occupy(choice.pools, self._tenant)
        return True

    def _has_room(self, choice: PathChoice, claimed_pools: Collection[Hashable]) -> bool:
        return all(self._places.has_room(pool, self._tenant, claimed_pools) for pool in choice.pools)

    def release(self) -> None:
        for choice in self._taken:
            self._places.vacate(choice.pools, self._tenant)


def find_choices(
    places: ExecutorPlaces,
    assignment: Assignment,
    pinned_path: str = "",
    pins: Sequence[str] = (),
    conversation: str = "",
) -> list[list[PathChoice]]:
    """Return the allowed paths per model of ``assignment``, live ones if possible.

    Raises as ``Router.admissible_paths``. A ``conversation`` prefers its last path if there is room.
    """
    part_choices = []
    for part in assignment.parts:
        paths = places.router.admissible_paths(part, pinned_path, pins, len(assignment.parts) > 1)
        choices = [PathChoice(part.model, part.kind, path, places.router.path_pools(part, path)) for path in paths]
        choices = [choice for choice in choices if all(map(places.is_served, choice.pools))] or choices[:1]
        choices = [choice for choice in choices if choice.path.rate > 0] or choices
        if conversation and len(choices) > 1 and choices[0].path.rate > 0:
            kept_path = places.router.conversation_path(part, conversation, [choice.path for choice in choices])
            choices = [choice._replace(first=choice.path is kept_path) for choice in choices]
        part_choices.append(choices)
    return part_choices
