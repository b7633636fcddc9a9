"""``python -m omnibus_models.device DEVICE``: checks that torch can compute there.

See ``omnibus.process.run_module``.
"""

import sys

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


if __name__ == "__main__":
    sys.exit(run_module.report_answer(lambda: check_device(sys.argv[1])))
