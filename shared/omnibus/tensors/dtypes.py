"""Dtypes of tensors in numpy."""

import numpy as np

#: numpy has no bfloat16: such a tensor is shown as its raw 16-bit words.
_NUMPY_NAME = {"bfloat16": "uint16"}


def numpy_dtype(dtype: str) -> np.dtype:
    """Return the numpy dtype for a handle's ``dtype``; ``uint16`` for ``bfloat16``."""
    return np.dtype(_NUMPY_NAME.get(dtype, dtype))
