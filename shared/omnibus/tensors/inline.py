"""Small tensors within messages, for readers on other nodes: a pull of its own costs more than the bytes.

Towards readers of the same node tensors always go by the arena.
"""

import numpy as np

from omnibus.tensors.dtypes import numpy_dtype
from omnibus.tensors.handle import InlineTensor


def pack_tensor(array: np.ndarray) -> InlineTensor:
    """Return ``array`` as bytes of a message; its dtype has to be one of ``handle.ITEMSIZE``."""
    return InlineTensor(array.dtype.name, array.shape, array.tobytes()).validate()


def unpack_tensor(tensor: InlineTensor) -> np.ndarray:
    """The array of ``tensor``, read-only. Raises ``ProtocolError`` when dtype, shape and data do not agree."""
    tensor.validate()
    return np.frombuffer(tensor.data, numpy_dtype(tensor.dtype)).reshape(tensor.shape)
