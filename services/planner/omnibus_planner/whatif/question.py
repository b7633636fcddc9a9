"""Options of ``omnibus whatif``: data, and parsers of options."""

import re

import msgspec

from omnibus.errors import BadRequest

#: The value of ``plan`` for the store's plan.
CURRENT = "current"

_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class WhatIfQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the command, empty or 0 if omitted. ``since`` is how long ago records begin."""

    plan: str = ""
    models: str = ""
    trace: str = ""
    workload: str = ""
    since: str = ""
    gpus: str = ""
    rate: str = ""
    model: str = ""
    engine_profile: str = ""
    seconds: float = 0.0
    seed: int = 1
    json: bool = False


class RateChange(msgspec.Struct, frozen=True):
    """Req/s of all requests, or a factor on the rate; the other is 0."""

    rate: float = 0.0
    factor: float = 0.0


def parse_rate(text: str) -> RateChange:
    """Parse ``2x`` or ``12`` (req/s); an empty text changes nothing. Raises ``BadRequest``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(x?)\s*", text or "1x")
    value = float(match[1]) if match else 0.0
    if not match or not value > 0:
        raise BadRequest(f"--rate {text!r}: give a factor such as 2x, or requests per second such as 12")
    return RateChange(factor=value) if match[2] else RateChange(rate=value)


def parse_gpus(text: str) -> dict[str, int]:
    """Parse ``8 H100, 4 L40S`` as counts by type. Raises ``BadRequest``."""
    counts: dict[str, int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        count, _, name = part.partition(" ")
        if not count.isdigit() or not name.strip() or name.strip() in counts:
            raise BadRequest(f"--gpus {text!r}: give counts and types, each once, such as '8 H100, 4 L40S'")
        counts[name.strip()] = int(count)
    return counts


def parse_duration(text: str) -> float:
    """Return the seconds of ``90s``, ``10m``, ``2h`` or ``1d``. Raises ``BadRequest``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text)
    unit = _SECONDS.get(match[2] or "s") if match else None
    if match is None or unit is None or not float(match[1]) > 0:
        raise BadRequest(f"--from {text!r}: give a duration such as 90s, 10m or 2h")
    return float(match[1]) * unit
