"""Outcomes of parsers, which may reject their input."""

from collections.abc import Callable
from typing import Any

from omnibus.errors import Rejected


def value_or_refusal(parse: Callable[..., Any], *arguments: Any) -> Any:
    """Value of ``parse``, or the ``Rejected`` error that it raised.

    The error must be a 400 or a 413. Other errors propagate.
    """
    try:
        return parse(*arguments)
    except Rejected as error:
        if error.status in (400, 413):
            return error
        raise
