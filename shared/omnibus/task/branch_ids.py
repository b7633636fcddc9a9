"""Ids for concurrent branches of an ``invoke``, equal in every run."""

import asyncio
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")

#: Child numbers from the root; () is ``invoke`` itself.
Path = tuple[int, ...]


class _Branch:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.task = asyncio.current_task()
        self.children = 0


_branch: ContextVar[_Branch | None] = ContextVar("omnibus_branch", default=None)


@contextmanager
def enter_root_branch() -> Iterator[None]:
    """Start ``invoke`` in the current task."""
    token = _branch.set(_Branch(()))
    try:
        yield
    finally:
        _branch.reset(token)


def current_branch() -> Path:
    """Return the branch of the current task.

    Tasks inherit their creator's context, so a task that finds another task's branch is its child. Children are
    numbered at their first call, which is the order of their creation.
    """
    branch = _branch.get()
    if branch is None:
        return ()
    if branch.task is not asyncio.current_task():
        branch.children += 1
        branch = _Branch((*branch.path, branch.children))
        _branch.set(branch)
    return branch.path


class PendingActions(Generic[T]):
    """Actions of an earlier run that must be repeated.

    Each branch takes its own actions first, then an equal one of another branch: workers that share a queue may swap
    their actions.
    """

    def __init__(self) -> None:
        self._by_key: dict[Hashable, list[tuple[Path, T]]] = {}

    def put(self, key: Hashable, path: Path, action: T) -> None:
        self._by_key.setdefault(key, []).append((path, action))

    def take(self, key: Hashable) -> T | None:
        left = self._by_key.get(key, [])
        if not left:
            return None
        path = current_branch()
        own = next((index for index, (by, _) in enumerate(left) if by == path), 0)
        return left.pop(own)[1]

    def remaining_actions(self) -> list[T]:
        return [action for left in self._by_key.values() for _, action in left]
