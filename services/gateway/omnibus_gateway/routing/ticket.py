"""Identity of an invocation, for which a route is found."""

from typing import NamedTuple


class InvocationTicket(NamedTuple):
    """Identity of an invocation: its id names the gateway and the kind of request.

    Its number determines its route. ``cache_key`` names the conversation that it is a turn of, if any.
    """

    id: str
    kind: str
    number: int
    cache_key: str = ""
