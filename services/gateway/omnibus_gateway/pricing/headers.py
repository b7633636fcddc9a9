"""Headers that request the price of a request or limit it. Bodies stay those of OpenAI."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from omnibus.errors import BadRequest

USAGE_HEADER, QUOTE_HEADER, LIMIT_HEADER = b"x-omnibus-usage", b"x-omnibus-quote", b"x-omnibus-max-cost"
_YES, _NO = (b"1", b"true"), (b"", b"0", b"false")


class PriceOptions(NamedTuple):
    """Price options of a request.

    ``usage`` adds the usage to the answer. With ``quote``, the answer is the price, and the request does not run.
    ``limit`` is the highest expected cost, in the plan's currency.
    """

    usage: bool = False
    quote: bool = False
    limit: float | None = None

    @property
    def before(self) -> bool:
        """True if the price must be known before the request runs."""
        return self.quote or self.limit is not None


NO_PRICES = PriceOptions()


def read_price_options(headers: Mapping[bytes, bytes]) -> PriceOptions:
    """Read the headers. Raises ``BadRequest`` with the name of the invalid one."""
    if not (USAGE_HEADER in headers or QUOTE_HEADER in headers or LIMIT_HEADER in headers):
        return NO_PRICES
    return PriceOptions(_read_flag(headers, USAGE_HEADER), _read_flag(headers, QUOTE_HEADER), _read_limit(headers))


def refuse_price_options(headers: Mapping[bytes, bytes]) -> None:
    """Raise ``BadRequest`` for price headers on routes without prices."""
    if read_price_options(headers).before:
        name = (QUOTE_HEADER if QUOTE_HEADER in headers else LIMIT_HEADER).decode()
        raise BadRequest(f"{name} is only for single requests to models of the plan: omit it", param=name)


def _read_flag(headers: Mapping[bytes, bytes], name: bytes) -> bool:
    flag = headers.get(name, b"").strip().lower()
    if flag in _YES:
        return True
    if flag not in _NO:
        raise BadRequest(f"{name.decode()} must be 1 or 0, not {flag[:40].decode('latin-1')!r}", param=name.decode())
    return False


def _read_limit(headers: Mapping[bytes, bytes]) -> float | None:
    name, amount = LIMIT_HEADER.decode(), headers.get(LIMIT_HEADER, b"").strip()[:40].decode("latin-1")
    if not amount:
        return None
    try:
        limit = float(amount)
    except ValueError:
        limit = math.nan
    if not (math.isfinite(limit) and limit >= 0):
        raise BadRequest(f"{name} must be an amount in the plan's currency, such as 0.002, not {amount!r}", param=name)
    return limit
