"""Equality of arrays from different batches or kernels, within promised bounds.

docs/reliability.md contains the promise. Another batch, or a kernel of another processor, may sum in another order, so
the last bits differ. The errors are measured with the kernels of ``tests/kernels.py``. After the layers of one model
(two dozen roundings of 2**-24 in a row) they are up to 2.4e-6 of the largest value. After the steps of a denoiser,
whose guidance multiplies them, they are up to 4.8e-6.
"""

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

#: Largest difference of two equal float32 arrays, as a part of the largest value.
BOUND = 1e-5
#: The same after all steps of a denoiser; one row of one weight that is 1 % off makes 7e-5.
DENOISED_BOUND = 5e-5


def assert_close(found: ArrayLike, expected: ArrayLike, bound: float = BOUND) -> None:
    """Fail if ``actual`` differs from ``reference`` by more than rounding."""
    found, expected = _to_array(found), _to_array(expected)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound * float(np.abs(expected).max(initial=0)))


def _to_array(array: ArrayLike) -> np.ndarray:
    return np.asarray(array.detach() if isinstance(array, Tensor) else array)


def choose_clearly(logits: Tensor) -> Tensor:
    """Return the best of ``logits`` [..., V] as [...].

    Fails if rounding could change the choice, because such a case tests nothing.
    """
    best, ids = logits.float().topk(2, dim=-1)
    lead = best[..., 0] - best[..., 1]
    scale = logits.masked_fill(logits.isinf(), 0).abs().amax(-1)  # ids that are never chosen have -inf
    assert torch.all(lead > BOUND * scale), f"nearly a tie, by {lead.min():.1e}: take other inputs"
    return ids[..., 0]
