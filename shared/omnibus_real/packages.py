"""Packages with trained weights, and the threads of their executor."""

from importlib import import_module
from pathlib import Path
from typing import Any

from omnibus.checkpoints.packaged import module_directory
from omnibus.environment import count_processors
from omnibus.errors import Fatal
from omnibus.executor.settings import ExecutorSettings
from omnibus.settings import read_settings


def package_directory(name: str) -> Path:
    """Return the directory of the package ``name``, whose code is not imported.

    Raises ``Fatal`` if it is not installed.
    """
    directory = module_directory(name)
    if directory is None:
        raise _not_installed(name)
    return directory


def import_package(name: str) -> Any:
    """Import the package ``name``. Raises ``Fatal`` if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise _not_installed(name) from error


def _not_installed(name: str) -> Fatal:
    return Fatal(
        f"the package {name!r} is not installed; install it with others: pip install 'omnibus-serve[real]', and "
        "`pip install --no-deps -r requirements-real.txt` (`make install-real` runs both)"
    )


def count_threads() -> int:
    """Return ``OMNIBUS_EXECUTOR_THREADS``; for 0, the number of processors of this process."""
    return read_settings(ExecutorSettings).threads or count_processors()


def open_session(file: Path) -> Any:
    """Open a model in ONNX with the threads of this executor."""
    onnxruntime = import_package("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = count_threads(), 1
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
