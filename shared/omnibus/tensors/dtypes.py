"""Dtypes of tensors as numpy shows them."""

import numpy as np

#: numpy has no bfloat16: such a tensor is seen as its raw 16-bit words.
_NUMPY_NAME = {"bfloat16": "uint16"}


def numpy_dtype(dtype: str) -> np.dtype:
    """The numpy dtype that shows a handle's ``dtype``; ``bfloat16`` is shown as ``uint16``."""
    return np.dtype(_NUMPY_NAME.get(dtype, dtype))
