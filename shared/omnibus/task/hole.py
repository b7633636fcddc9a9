"""Holes: literals that a recorded graph leaves open, and that nobody may look at."""

from typing import Any, NoReturn

from omnibus.errors import PlaceholderError
from omnibus.task.result import Result
from omnibus.task.session import current_session

_OF_RESULTS = {name for name, method in vars(Result).items() if method is vars(Result)["_raise_placeholder_error"]} - {
    "_raise_placeholder_error"
}
#: What a result refuses, a hole refuses as well, and what would show that it is one.
_REFUSED = _OF_RESULTS | {"__hash__", "__repr__", "__getattribute__", "__setattr__", "__delattr__"}


class Hole:
    """Stands for a literal that differs from request to request. It can be passed to a task, and nothing else."""

    __slots__ = ()


def _raise_hole_error(*_: Any) -> NoReturn:
    error = PlaceholderError(
        "`invoke` looks at a literal of its request, so requests of one kind may have other graphs"
    )
    session = current_session()
    raise error if session is None else session.remember_error(error)


for _name in _REFUSED:
    setattr(Hole, _name, _raise_hole_error)
