"""A pytest plugin: matrix products whose rounding depends on the number of rows.

Kernels of some processors (AVX-512, AMX) sum in another order in another batch. Kernels of others do not, so a test
that wrongly expects equal bits passes there. With ``-p tests.shape_kernels``, tests marked ``numeric`` use other
float32 products on any processor. Those with an odd number of rows are rounded once, from float64. Others are rounded
after every sum. Equal shapes still give equal bits.

Other tests of the same files use them as well, unless numeric ones are few there, because these products are slow. All
other tests run with the processor's own kernels.
"""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

#: The part of a file's tests that are numeric from which on all of it has these products.
_NUMERIC_PART = 1 / 8
_NUMERIC_FILES = pytest.StashKey[set[Path]]()
_replaced: list[torch.library.Library] = []


@pytest.hookimpl(tryfirst=True)  # before any test is left out
def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Remember files with many numeric tests."""
    tests = Counter(item.path for item in items)
    numeric = Counter(item.path for item in items if _is_numeric(item))
    config.stash[_NUMERIC_FILES] = {path for path, count in numeric.items() if count >= _NUMERIC_PART * tests[path]}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Choose kernels by the test's file or by the test.

    Tests of a file share fixtures that were made with the same kernels.
    """
    use_shape_kernels(_is_numeric(item) or item.path in item.config.stash[_NUMERIC_FILES])
    return (yield)


def _is_numeric(item: pytest.Item) -> bool:
    return item.get_closest_marker("numeric") is not None


def use_shape_kernels(is_numeric: bool) -> None:
    """Use this module's matrix products if ``is_numeric``, else torch's own."""
    if is_numeric and not _replaced:
        _replaced.append(_replace_products())
    elif not is_numeric and _replaced:
        _replaced.pop()._destroy()


def _replace_products() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that operators are overridden is the purpose
        library.impl("mm", multiply_matrices, "CPU")
        library.impl("bmm", multiply_matrices, "CPU")
        library.impl("addmm", _add_product, "CPU")
    return library


def multiply_matrices(left: Tensor, right: Tensor) -> Tensor:
    """Product of [..., M, K] and [..., K, N] by numpy.

    The float32 rounding depends on whether M is odd.
    """
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


def _add_product(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return bias * beta + multiply_matrices(left, right) * alpha
