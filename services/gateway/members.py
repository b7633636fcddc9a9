"""Who can serve: executors as this gateway knows them, from their own status events alone."""

import time
from collections.abc import Iterator

from omnibus.bus.messages import ExecutorStatus

#: Seconds without a heartbeat after which an executor gets no new work and is asked whether it lives.
SUSPECT = 1.2
#: Seconds that an executor may hold work without a single step before its stage counts as stuck.
STUCK = 15.0


class Member:
    """One executor. ``outstanding`` is what this gateway sent and has not seen finish, in tokens."""

    __slots__ = ("outstanding", "progressed", "seen", "status")

    def __init__(self, status: ExecutorStatus, now: float) -> None:
        self.status = status
        self.outstanding = 0
        self.seen = now
        self.progressed = now

    def update(self, status: ExecutorStatus, now: float) -> None:
        if status.steps != self.status.steps or not status.inflight:
            self.progressed = now
        self.status = status
        self.seen = now

    def fit(self, now: float) -> bool:
        """Ready and heard of lately."""
        return self.status.state == "ready" and now - self.seen < SUSPECT

    def stuck(self, now: float) -> bool:
        return self.status.inflight > 0 and now - self.progressed > STUCK


class Members:
    """All executors by id."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}

    def heard(self, status: ExecutorStatus) -> bool:
        """Take a status event; returns whether the executor just left."""
        if status.state == "gone":
            return self._members.pop(status.id, None) is not None
        now = time.monotonic()
        member = self._members.get(status.id)
        if member is None:
            self._members[status.id] = Member(status, now)
        else:
            member.update(status, now)
        return False

    def remove(self, executor: str) -> None:
        self._members.pop(executor, None)

    def get(self, executor: str) -> Member | None:
        return self._members.get(executor)

    def fit(self, model: str, option: str, exclude: frozenset[str] = frozenset()) -> list[Member]:
        """Executors of ``option`` that may get work now."""
        now = time.monotonic()
        return [
            member
            for member in self._members.values()
            if member.status.model == model
            and member.status.option == option
            and member.status.id not in exclude
            and member.fit(now)
        ]

    def silent(self) -> Iterator[str]:
        """Executors that have missed their heartbeats."""
        now = time.monotonic()
        for member in list(self._members.values()):
            if now - member.seen >= SUSPECT:
                yield member.status.id

    def statuses(self) -> list[ExecutorStatus]:
        return [member.status for member in self._members.values()]

    def stages(self, model: str) -> dict[str, str]:
        """Components of ``model`` that some executor serves: ``ok`` or why it makes no progress."""
        now = time.monotonic()
        found: dict[str, str] = {}
        for member in self._members.values():
            if member.status.model != model:
                continue
            state = "ok" if member.fit(now) and not member.stuck(now) else "stuck" if member.stuck(now) else "silent"
            for component in member.status.components:
                if found.get(component) != "ok":
                    found[component] = state
        return found
