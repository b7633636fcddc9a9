"""Length of a fuzzing run: short and the same each time, or long and by a seed (``python -m tests.fuzz``)."""

import os

from hypothesis import HealthCheck, settings

#: Examples of one property in a long round; 0 in the short run that is part of the tests.
LONG_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def limit_examples(short: int = 200, cost: int = 1) -> settings:
    """Settings of a property with ``short`` examples in the short run.

    ``cost`` is the number of cheap examples that one of it equals, for a long round.
    """
    count = max(LONG_EXAMPLES // cost, short) if LONG_EXAMPLES else short
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=not LONG_EXAMPLES,
        database=None,
        print_blob=True,
        suppress_health_check=_SLOW,
    )
