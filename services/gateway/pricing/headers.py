"""Headers by which clients ask what a request costs. Bodies stay those of OpenAI."""

from collections.abc import Mapping

from omnibus.errors import BadRequest

#: Asks for ``usage.omnibus`` in the answer.
USAGE_HEADER = b"x-omnibus-usage"
_YES, _NO = (b"1", b"true"), (b"", b"0", b"false")


def wants_usage(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the answer is to say what it took. Raises ``BadRequest``."""
    return _read_flag(headers, USAGE_HEADER)


def _read_flag(headers: Mapping[bytes, bytes], name: bytes) -> bool:
    given = headers.get(name, b"").strip().lower()
    if given in _YES:
        return True
    if given not in _NO:
        raise BadRequest(f"{name.decode()} is 1 or 0, not {given[:40].decode('latin-1')!r}", param=name.decode())
    return False
