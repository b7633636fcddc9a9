"""Places of an executor reserved for tenants without work there."""

#: Places for each reserved one.
_PLACES_PER_SPARE = 8


def count_spare_places(places: int) -> int:
    """Return the extra places of an executor with ``places``, at least one.

    They are for tenants without work there, in addition to ``places``, so that a single tenant loses none.
    """
    return max(1, places // _PLACES_PER_SPARE)
