"""Training loop of all models: steps of AdamW and Muon with warm-up and cosine decay."""

import math
import sys
import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from omnibus.cli.progress import ProgressBar

WARM = 100  # steps until the rate is whole
_LEAST = 0.02  # of the rate is left at the end
_CLIPPED = 1.0
_DECAY = 0.01
_TOLD = 100  # steps
_MUON = 10.0  # times the rate of AdamW: its steps are measured otherwise


def train(
    name: str, parameters: Iterable[nn.Parameter], loss: Callable[[int], Tensor], steps: int, rate: float = 2e-3,
    matrices: Iterable[nn.Parameter] = (), until: int | None = None, warm: int = WARM,
) -> None:  # fmt: skip
    """Take ``steps`` down the ``loss`` of each step.

    The loss is printed now and then, above a bar on a terminal. Muon trains the ``parameters`` among ``matrices``,
    because it needs fewer steps for layers of transformers. Rates decay as for all ``steps``, even if a stage ends at
    ``until``.
    """
    trainable = [parameter.requires_grad_() for parameter in parameters]
    matrix_ids = {id(matrix) for matrix in matrices}
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(
            [each for each in trainable if id(each) not in matrix_ids], lr=rate, betas=(0.9, 0.98), weight_decay=_DECAY
        )
    ]
    if matrix_ids:
        whole = [each for each in trainable if id(each) in matrix_ids]
        optimizers.append(torch.optim.Muon(whole, lr=_MUON * rate, weight_decay=_DECAY))
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, lambda step: _share(step, steps, warm)) for each in optimizers]
    began, mean_loss, count = time.monotonic(), 0.0, until or steps
    bar = ProgressBar()
    for step in range(count):
        for parameter in trainable:
            parameter.grad = None
        value = loss(step)
        value.backward()
        nn.utils.clip_grad_norm_(trainable, _CLIPPED)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        mean_loss += float(value.detach()) / _TOLD
        bar.update(f"training {name}", step + 1, count)
        if (step + 1) % _TOLD == 0:
            say(f"{name}: step {step + 1} of {steps}, loss {mean_loss:.4f}, {time.monotonic() - began:.0f} s")
            mean_loss = 0.0
    bar.close()
    for parameter in trainable:
        parameter.requires_grad_(False)


def layers(module: nn.Module) -> list[nn.Parameter]:
    """Matrices of the linear layers of ``module``, without word or code tables."""
    linear = {f"{name}.weight" for name, each in module.named_modules() if isinstance(each, nn.Linear)}
    return [each for name, each in module.named_parameters() if name in linear and not name.endswith("head.weight")]


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _share(step: int, steps: int, warm: int) -> float:
    rising = min(1.0, (step + 1) / warm)
    return rising * (_LEAST + (1 - _LEAST) * 0.5 * (1 + math.cos(math.pi * step / steps)))


def spread(module: nn.Module, seed: int) -> None:
    """Initialize matrices with deviation 1/sqrt(fan in), and biases with zeros.

    The library's own 0.02 suits wider layers; small ones learn slowly from it.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() >= 2:
                scale = parameter[0].numel() ** -0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
            elif name.endswith("bias"):
                parameter.zero_()
