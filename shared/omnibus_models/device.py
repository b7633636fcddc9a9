"""``python -m omnibus_models.device DEVICE``: checks that torch can compute there, and describes it.

``auto`` is the first GPU, or the CPU without one.

See ``omnibus.process.run_module``.
"""

import sys
from typing import Any

from omnibus.errors import BadRequest
from omnibus.process import run_module


def check_device(name: str) -> str:
    """Return the name of the device ``name``, such as ``cuda:1``.

    Raises ``BadRequest`` with torch's error.
    """
    import torch

    try:
        return str(torch.zeros(1, device=name).device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        here = "cuda is available" if torch.cuda.is_available() else "this machine has no GPU that torch can use"
        raise BadRequest(f"OMNIBUS_EXECUTOR_DEVICE={name!r}: {reason} ({here}; `cpu` always works)") from error


def describe_device(name: str) -> dict[str, Any]:
    """Return the device ``name``, its free memory in bytes (None if unknown), and whether it multiplies bfloat16.

    Raises as ``check_device``.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = check_device(name)
    if not device.startswith("cuda"):
        return {"device": name, "free_bytes": None, "bfloat16": True}
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return {"device": name, "free_bytes": free_bytes, "bfloat16": torch.cuda.is_bf16_supported(False)}


if __name__ == "__main__":
    sys.exit(run_module.report_answer(lambda: describe_device(sys.argv[1])))
