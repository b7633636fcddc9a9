"""Kernels of attention that torch may choose on a GPU."""

import torch


def avoid_planned_kernels(device: str) -> None:
    """Let this process use no kernels of cuDNN for attention, if ``device`` is a GPU.

    cuDNN plans anew for each shape, up to 1.3 s on an H100. Prompts, media and the positions of an answer have
    another length each time, and the other kernels of torch are as fast.
    """
    if device.startswith("cuda"):
        torch.backends.cuda.enable_cudnn_sdp(False)
