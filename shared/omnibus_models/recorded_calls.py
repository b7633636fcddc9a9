"""Functions of models whose operations are recorded, and then run without Python. Only on a CPU.

A pass of a small model is hundreds of operations of a few microseconds. Python and the libraries take two thirds of its
time to start them, and hold the interpreter's lock meanwhile. A recording (TorchScript) runs the same operations with
the same kernels, so its results are equal to the bit. It needs no compiler, and the lock is free while it runs.

A function is recorded only if its operations depend on nothing but shapes: it must not read values of tensors. Each
recording is compared with the function before it is used. If anything differs, or the function cannot be recorded, the
log has the reason and the function always runs as it is.
"""

import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_log = logging.getLogger(__name__)
_tracing: Any = torch.jit  # its names are not exported to type checkers

#: Longest call that is recorded: in longer ones, the operations themselves take the time.
_MAX_CALL_SECONDS = 0.05
#: Calls of one shape before it is recorded: most shapes are rare.
_PLAIN_CALLS = 2
_MAX_RECORDINGS = 64

#: Fields of configurations that limit the positions to which a layer attends.
WINDOWS = frozenset({"sliding_window", "sliding_window_size", "attention_chunk_size", "window_size", "local_window"})

#: Output of a function: a tensor, or a tuple of tensors.
T = TypeVar("T", Tensor, tuple[Tensor, ...])

# Conditions on shapes become fixed, which comparing detects. The tracer is only maintained, not extended.
warnings.filterwarnings("ignore", category=_tracing.TracerWarning)
warnings.filterwarnings("ignore", message=r"`torch\.jit\.trace", category=DeprecationWarning)


class RecordingSettings:
    """Settings of the process: whether functions are recorded."""

    enabled = True


class CallShape(NamedTuple):
    """Shape of a call. All calls of one ``kind`` share a recording; each ``size`` is compared once.

    A recording keeps the branches that depend on a shape. So no branch may change within a ``size``.
    """

    kind: Hashable
    size: Hashable


def has_windows(module: nn.Module) -> bool:
    """Return whether layers of a model attend to a limited number of positions.

    Such a model takes other branches in the middle of a power of two of positions.
    """
    return bool(_read_windows(getattr(module, "config", None)))


def _read_windows(config: Any) -> set[int]:
    """Return the windows of a configuration and of those in it."""
    fields = vars(config) if hasattr(config, "to_dict") else {}
    own = {value for name, value in fields.items() if name in WINDOWS and isinstance(value, int)}
    return own.union(*map(_read_windows, fields.values()))


class RecordedCalls(Generic[T]):
    """Calls ``function`` of ``module``, recorded if possible.

    The function takes a constant and tensors, and returns a tensor or several. Repeating a call must change nothing. By
    default each shape has its own recording. With ``find_shape``, a recording serves calls of several shapes. It must
    serve other shapes than its own before it is used.
    """

    def __init__(
        self, module: nn.Module, function: Callable[..., T], find_shape: Callable[..., CallShape] | None = None
    ) -> None:
        self._module = module
        self._function: Callable[..., T] = function
        self._find_shape = find_shape or _exact_shape
        self._is_exact = find_shape is None
        self._counts: OrderedDict[CallShape, int] = OrderedDict()
        self._recordings: OrderedDict[Hashable, _Recording[T]] = OrderedDict()
        self._compared: dict[CallShape, _Recording[T]] = {}
        self._refused = False

    @property
    def recordings(self) -> int:
        """Number of recordings."""
        return len(self._recordings)

    @property
    def compared(self) -> int:
        """Number of shapes that recordings serve."""
        return len(self._compared)

    def __call__(self, constant: Hashable, *tensors: Tensor) -> T:
        if self._refused or tensors[0].device.type != "cpu" or not RecordingSettings.enabled:
            return self._function(constant, *tensors)
        shape = self._find_shape(constant, *tensors)
        recording = self._compared.get(shape)
        if recording is not None:
            return recording.run(*tensors)
        return self._call_plainly(shape, constant, tensors)

    def _call_plainly(self, shape: CallShape, constant: Hashable, tensors: tuple[Tensor, ...]) -> T:
        """Call the function; record it, or compare its recording, if necessary."""
        begin = perf_counter()
        output = self._function(constant, *tensors)
        seconds = perf_counter() - begin
        self._counts[shape] = self._counts.pop(shape, 0) + 1
        if len(self._counts) > _MAX_RECORDINGS * 4:
            self._counts.popitem(last=False)
        if self._counts[shape] < _PLAIN_CALLS or seconds > _MAX_CALL_SECONDS:
            return output
        try:
            self._compare_recording(shape, constant, tensors, output)
        except Exception as error:  # noqa: BLE001 - the output is there; a library's code may fail in any way here
            self._refused = True
            self._recordings.clear()
            self._compared.clear()
            _log.warning("%s is not recorded: %s", type(self._module).__name__, _first_line(error))
            return self._function(constant, *tensors)  # a wrong recording may have written wrong keys and values
        return output

    def _compare_recording(self, shape: CallShape, constant: Hashable, tensors: tuple[Tensor, ...], output: T) -> None:
        recording = self._recordings.get(shape.kind)
        if recording is None:
            self._recordings[shape.kind] = self._record(shape.kind, constant, tensors)
            return
        outputs = _list_outputs(output)
        is_finite = all(bool(each.isfinite().all()) for each in outputs)
        if not is_finite or (not self._is_exact and recording.has_shapes(tensors)):
            return  # a call that proves nothing
        if not all(map(torch.equal, _list_outputs(recording.run(*tensors)), outputs)):
            raise RuntimeError(f"the recording of {shape.kind} gives other values")
        self._compared[shape] = recording

    def _record(self, kind: Hashable, constant: Hashable, tensors: tuple[Tensor, ...]) -> "_Recording[T]":
        with _ValueReads():
            self._function(constant, *tensors)
        if len(self._recordings) >= _MAX_RECORDINGS:
            _, oldest = self._recordings.popitem(last=False)
            self._compared = {shape: each for shape, each in self._compared.items() if each is not oldest}
        self._module.requires_grad_(False)
        return _Recording(lambda *inputs: self._function(constant, *inputs), tensors)


def _exact_shape(constant: Hashable, *tensors: Tensor) -> CallShape:
    shapes = (constant, *(each.shape for each in tensors))
    return CallShape(shapes, ())


def _list_outputs(output: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    return [output] if isinstance(output, Tensor) else list(output)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class _Recording(Generic[T]):
    """The operations of ``function``, as a call with ``tensors`` runs them."""

    def __init__(self, function: Callable[..., T], tensors: tuple[Tensor, ...]) -> None:
        self._shapes = [each.shape for each in tensors]
        self._traced: Any = _tracing.trace(function, tensors, check_trace=False)

    def has_shapes(self, tensors: tuple[Tensor, ...]) -> bool:
        return self._shapes == [each.shape for each in tensors]

    def run(self, *tensors: Tensor) -> T:
        # Without passes of the compiler: they take a hundred times as long as a call, and could change roundings.
        with _tracing.optimized_execution(False):
            output: T = self._traced(*tensors)
        return output


#: Functions that read values, and those whose results have a shape that depends on values.
_READS = frozenset({"tolist", "numpy", "item", "__bool__", "__int__", "__float__", "__index__", "__array__"})
_SELECTIONS = frozenset({"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"})


class _ValueReads(TorchFunctionMode):
    """Raises ``RuntimeError`` if Python reads values of a tensor.

    The same if a shape depends on them. It sees functions, not operations: a mode for operations imports torch's
    compiler, which takes seconds.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _READS or name in _SELECTIONS or _selects(name, args):
            raise RuntimeError(f"its operations depend on values that {name} reads")
        return func(*args, **(kwargs or {}))


def _selects(name: str, args: Any) -> bool:
    """Return whether a call selects by values: ``where`` with a condition alone, or an index of booleans."""
    if name == "where":
        return len(args) == 1
    if name != "__getitem__":
        return False
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    return any(isinstance(each, Tensor) and each.dtype == torch.bool for each in index)
