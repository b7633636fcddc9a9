"""Kernels of attention that an executor's process may use."""

from collections.abc import Iterator

import pytest
import torch

from omnibus_models.attention_kernels import avoid_planned_kernels


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize(("device", "allowed"), [("cuda", False), ("cuda:1", False), ("cpu", True)])
def test_no_kernel_that_plans_for_each_length_is_used_on_a_gpu(device, allowed):
    avoid_planned_kernels(device)

    assert torch.backends.cuda.cudnn_sdp_enabled() is allowed
