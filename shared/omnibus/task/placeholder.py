"""Values that do not exist yet: they carry their producer and refuse to be looked at."""

from typing import Any, NoReturn

from omnibus.errors import PlaceholderError


class Placeholder:
    """Stands for ``output`` of node ``node`` while a graph is recorded, and for tensors in replay.

    It may be passed to other tasks and returned. Looking at it raises ``PlaceholderError``, because
    whatever ``invoke`` would decide on it would be decided on nothing.
    """

    __slots__ = ("kind", "node", "origin", "output", "task")

    def __init__(self, node: int, output: str, task: str, kind: str) -> None:
        self.origin = (node, output)
        self.node = node
        self.output = output
        self.task = task
        self.kind = kind

    def __repr__(self) -> str:
        return f"<{self.kind} {self.output!r} of {self.task} (node {self.node})>"

    def _refuse(self, *_: Any) -> NoReturn:
        raise PlaceholderError(
            f"{self!r} has no value while the graph is recorded: pass it to another task or return it. "
            "To decide on it, take it out of `invoke` and decide in the app's `serve`, where results are real"
        )

    __bool__ = __len__ = __str__ = __iter__ = __format__ = __contains__ = __getitem__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __int__ = __float__ = __index__ = __round__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _refuse
    __call__ = _refuse
    __hash__ = object.__hash__
