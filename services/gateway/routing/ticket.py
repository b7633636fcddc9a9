"""Identity of an invocation, as a route is found for it."""

from typing import NamedTuple


class InvocationTicket(NamedTuple):
    """An invocation's identity: its id says which gateway and which kind of request. Its number is for its route, and
    its ``cache_key`` names the conversation that it is a turn of, if it is one."""

    id: str
    kind: str
    number: int
    cache_key: str = ""
