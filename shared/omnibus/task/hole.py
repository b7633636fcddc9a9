"""Holes: open literals of a recorded graph, which ``invoke`` cannot read."""

from typing import Any, NoReturn

from omnibus.errors import PlaceholderError
from omnibus.task.result import Result
from omnibus.task.session import current_session

_OF_RESULTS = {name for name, method in vars(Result).items() if method is vars(Result)["_raise_placeholder_error"]} - {
    "_raise_placeholder_error"
}
#: Operations that a result rejects, and others that would reveal a hole.
_REFUSED = _OF_RESULTS | {"__hash__", "__repr__", "__getattribute__", "__setattr__", "__delattr__"}


class Hole:
    """Placeholder for a literal that differs between requests. It can only be passed to a task."""

    __slots__ = ()


def _raise_hole_error(*_: Any) -> NoReturn:
    error = PlaceholderError("`invoke` reads a literal of its request, so requests of one kind may have other graphs")
    session = current_session()
    raise error if session is None else session.remember_error(error)


for _name in _REFUSED:
    setattr(Hole, _name, _raise_hole_error)
