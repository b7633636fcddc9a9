"""The settings of ``make test-kernels`` select other kernels. The tolerances accept only rounding."""

import os
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests import kernels
from tests.close import BOUND, assert_close, choose_clearly
from tests.shape_kernels import multiply_matrices, use_shape_kernels

_PRODUCT = (
    "import torch; g = torch.Generator().manual_seed(1); a, b = (torch.rand(96, 96, generator=g) for _ in '12'); "
)
_PRODUCT += "print(torch.backends.cpu.get_cpu_capability(), (a @ b).numpy().tobytes().hex())"


def compute_product(variables: Sequence[tuple[str, str]]) -> tuple[str, np.ndarray]:
    """Return a process's kernels with ``variables``, and a product of two matrices."""
    environment = {**os.environ, **dict(variables)}
    process = subprocess.run(
        [sys.executable, "-c", _PRODUCT], env=environment, check=True, capture_output=True, timeout=120
    )
    capability, digits = process.stdout.decode().split()
    return capability, np.frombuffer(bytes.fromhex(digits), np.float32)


def test_the_settings_compute_otherwise_but_for_rounding():
    (old, first), (new, second) = (
        compute_product([*kernels.SETTINGS[name].variables.items()]) for name in ("baseline", "avx2")
    )

    assert (old, new) == ("DEFAULT", "AVX2")
    assert not np.array_equal(first, second)
    assert_close(first, second)


def test_products_round_by_the_number_of_their_rows():
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(256, 256, generator=generator) for _ in range(2))

    even, odd = multiply_matrices(left, right), multiply_matrices(left[:255], right)

    assert not torch.equal(even[:255], odd)
    assert torch.equal(odd, multiply_matrices(left[:255], right))
    assert_close(even[:255], odd)


def test_files_of_other_tests_have_the_kernels_of_the_processor():
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(255, 256, generator=generator) for _ in range(2))
    own = left @ right.T

    use_shape_kernels(True)
    try:
        by_shape = left @ right.T
    finally:
        use_shape_kernels(False)

    assert torch.equal(by_shape, multiply_matrices(left, right.T))
    assert not torch.equal(by_shape, own)
    assert torch.equal(left @ right.T, own)


@pytest.mark.parametrize("wrong", ["row", "weight"])
def test_a_wrong_row_or_weight_is_no_rounding(wrong: str):
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(8, 64, generator=generator) for _ in range(2))
    reference = left @ right.T

    other = right.clone()
    other[0, 0] += 1e-3
    result = left.flip(0) @ right.T if wrong == "row" else left @ other.T

    with pytest.raises(AssertionError, match="Mismatched elements"):
        assert_close(result, reference)


def test_a_tie_is_no_choice():
    with pytest.raises(AssertionError, match="nearly a tie"):
        choose_clearly(torch.tensor([[0.0, 2.0, 2.0 + BOUND]]))

    assert choose_clearly(torch.tensor([[0.0, 2.0, 2.1]])).tolist() == [2]
