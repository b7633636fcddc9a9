"""Small tensors within messages, for readers on other nodes: a separate pull costs more.

For readers on the same node, tensors are always sent through the arena.
"""

import numpy as np

from omnibus.tensors.dtypes import numpy_dtype
from omnibus.tensors.handle import InlineTensor


def pack_tensor(array: np.ndarray) -> InlineTensor:
    """Return ``array`` as bytes of a message; its dtype must be in ``handle.ITEMSIZE``."""
    return InlineTensor(array.dtype.name, array.shape, array.tobytes()).validate()


def unpack_tensor(tensor: InlineTensor) -> np.ndarray:
    """Return the read-only array of ``tensor``. Raises ``ProtocolError`` if dtype, shape and data disagree."""
    tensor.validate()
    return np.frombuffer(tensor.data, numpy_dtype(tensor.dtype)).reshape(tensor.shape)
