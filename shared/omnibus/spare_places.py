"""Places of an executor that stay free for tenants with nothing at work there."""

#: Places for each one that is kept free.
_PLACES_PER_SPARE = 8


def count_spare_places(places: int) -> int:
    """Places beyond ``places`` that an executor keeps for tenants which have nothing at work there; at least one.

    They come on top, so that a tenant alone loses none.
    """
    return max(1, places // _PLACES_PER_SPARE)
