"""A pytest plugin: matrix products whose rounding depends on the number of rows, on any processor.

Kernels of some processors (AVX-512, AMX) sum in another order in another batch; those of others do not, so that a test
which takes bits for granted passes there by luck. With ``-p tests.shape_kernels`` float32 products of an odd number of
rows are rounded once, from float64, and others after every sum. Equal shapes still give equal bits.
"""

import warnings

import numpy as np
import torch
from torch import Tensor

_OVERRIDES = torch.library.Library("aten", "IMPL")


def pytest_configure() -> None:
    """Replace the products of matrices on the CPU in this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that operators are overridden is the purpose
        _OVERRIDES.impl("mm", multiply_matrices, "CPU")
        _OVERRIDES.impl("bmm", multiply_matrices, "CPU")
        _OVERRIDES.impl("addmm", _add_product, "CPU")


def multiply_matrices(left: Tensor, right: Tensor) -> Tensor:
    """The product of [..., M, K] and [..., K, N], by numpy; the rounding of float32 depends on whether M is odd."""
    if left.dtype is torch.bfloat16:
        return multiply_matrices(left.float(), right.float()).bfloat16()
    one, other = left.detach().numpy(), right.detach().numpy()
    if one.shape[-1] != other.shape[-2]:
        raise RuntimeError(f"shapes {one.shape} and {other.shape} cannot be multiplied")
    if one.shape[-2] % 2:
        product = (one.astype(np.float64) @ other.astype(np.float64)).astype(one.dtype)
    else:
        product = one @ other
    return torch.from_numpy(np.ascontiguousarray(product))


def _add_product(added: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return added * beta + multiply_matrices(left, right) * alpha
