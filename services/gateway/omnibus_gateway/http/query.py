"""Query parameters, with errors that name them."""

from starlette.requests import Request

from omnibus.errors import BadRequest

_MAX_QUOTED_CHARS = 80
_MAX_DIGITS = 19


def parse_query(request: Request, *names: str) -> dict[str, str]:
    """Return the query parameters of ``request``. Raises ``BadRequest`` for one not in ``names``."""
    query = dict(request.query_params)
    unknown = sorted(set(query) - set(names))
    if unknown:
        name = unknown[0][:_MAX_QUOTED_CHARS]
        raise BadRequest(f"unknown parameter {name!r}: use {', '.join(names)}", param=name)
    return query


def parse_number(query: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    """Parse the whole number ``name`` of ``query``. Raises ``BadRequest``."""
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS and least <= int(text) <= most):
        raise BadRequest(f"{name} must be a whole number from {least} to {most}", param=name)
    return int(text)
