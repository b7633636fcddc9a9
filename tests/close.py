"""Equality of arrays that were computed in different batches.

A sum may be taken in another order in another batch, by kernels that depend on the processor, so its last bits differ:
by up to 5e-7 of the largest value in float32 where it was measured (AVX2, AVX-512, AMX). Docs promise ``BOUND``.
"""

import numpy as np
from numpy.typing import ArrayLike

#: Largest difference of two equal float32 arrays, as a part of the largest value.
BOUND = 1e-5


def assert_close(found: ArrayLike, expected: ArrayLike) -> None:
    """Fail when ``found`` is not ``expected``, but for the rounding of another batch."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=0, atol=BOUND * float(np.abs(expected).max(initial=0)))
