"""Branches of an ``invoke`` that run side by side, told apart the same way whenever it runs."""

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")

#: Which child of which child: () is ``invoke`` itself.
Path = tuple[int, ...]


class _Branch:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.task = asyncio.current_task()
        self.children = 0


_branch: ContextVar[_Branch | None] = ContextVar("omnibus_branch", default=None)


@contextmanager
def enter_root_branch() -> Iterator[None]:
    """``invoke`` begins here, in the present task."""
    token = _branch.set(_Branch(()))
    try:
        yield
    finally:
        _branch.reset(token)


def current_branch() -> Path:
    """The branch that asks. Tasks inherit their maker's context, so one that finds another's branch is its child:
    children are counted as they first ask, which is the order in which they were made."""
    found = _branch.get()
    if found is None:
        return ()
    if found.task is not asyncio.current_task():
        found.children += 1
        found = _Branch((*found.path, found.children))
        _branch.set(found)
    return found.path


class PendingActions(Generic[T]):
    """Actions of an earlier run that are still to be repeated. Each branch takes back its own; without any left, an
    equal one of another branch: workers that share a queue may swap what they do."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, list[tuple[Path, T]]] = {}

    def put(self, key: Hashable, path: Path, done: T) -> None:
        self._by_key.setdefault(key, []).append((path, done))

    def take(self, key: Hashable) -> T | None:
        left = self._by_key.get(key, [])
        if not left:
            return None
        path = current_branch()
        own = next((index for index, (by, _) in enumerate(left) if by == path), 0)
        return left.pop(own)[1]

    def remaining_actions(self) -> list[T]:
        """Return all actions that are left."""
        return [done for left in self._by_key.values() for _, done in left]
