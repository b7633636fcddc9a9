"""Imports the libraries of models without parts that serving does not call.

The libraries import compilers, losses, training and their numeric libraries together with a model. That takes three
seconds and 100 MB in each process.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

#: Modules that losses, compilers and converters of transformers, diffusers and torchvision call, and downloads.
LATE = (
    "requests",
    "scipy.integrate",
    "scipy.optimize",
    "scipy.stats",
    "torch._dynamo",
    "torch._dynamo._trace_wrapped_higher_order_op",
    "torch._dynamo.utils",
    "torch.nn.attention.flex_attention",
    "torchvision.datasets",
    "torchvision.models",
    "torchvision.ops",
    "torchvision.ops.boxes",
)
#: Decorators of ``torch._dynamo`` that change only what a compiler does.
_MARKERS = ("allow_in_graph", "assume_constant_result", "disable")
#: Packages that import all their modules, although each of these can be imported alone.
_BARE = ("diffusers.models.autoencoders", "diffusers.models.transformers")

#: Set while the skeletons of models are built on the CPU. Arithmetic on the meta device imports sympy, which costs a
#: quarter of a second and 25 MB.
skeletons_on_cpu: ContextVar[bool] = ContextVar("skeletons_on_cpu", default=False)


class LateType(type):
    """Type of stand-ins for classes and functions, which a call imports."""

    def __call__(cls, *values: Any, **options: Any) -> Any:
        _remove_late_modules()
        return getattr(importlib.import_module(cls.__module__), cls.__name__)(*values, **options)

    def __instancecheck__(cls, instance: object) -> bool:
        """Return whether ``instance`` is one of the real class. There is none before the import."""
        module = sys.modules.get(cls.__module__)
        return (
            module is not None
            and not isinstance(module, LateModule)
            and isinstance(instance, getattr(module, cls.__name__))
        )


class LateModule(ModuleType):
    """Module whose classes and functions import it when they are called."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):  # what the import system and ``inspect`` ask for
            raise AttributeError(name)
        if name in _MARKERS:
            return _return_function
        return LateType(name, (), {"__module__": self.__name__})


class BarePackage(ModuleType):
    """Package whose classes its parent finds, each in its module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__.rpartition(".")[0]), name)


class InstalledPackages(Mapping[str, list[str]]):
    """Names of the distributions of each package, as ``importlib.metadata.packages_distributions`` returns them.

    That reads the files of all distributions, which takes 0.3 s. Here a package whose distribution has the same name
    needs none of them.
    """

    def __init__(self, read_all: Callable[[], Mapping[str, list[str]]]) -> None:
        self._read_all = functools.cache(read_all)

    def __getitem__(self, name: str) -> list[str]:
        try:
            importlib.metadata.distribution(name)
        except (importlib.metadata.PackageNotFoundError, ValueError):
            return self._read_all()[name]
        return [name]

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._read_all())

    def __len__(self) -> int:
        return len(self._read_all())


@contextmanager
def import_late() -> Iterator[None]:
    """Import models without the modules ``LATE`` in this context.

    These are imported when they are called. After it, every import is a real one. A module that is imported already
    stays. transformers is imported as for a torch without ``torch.distributed``, and the classes for several processes
    are then absent from it. Load only small models: their skeletons take the memory of all weights.
    """
    packages = InstalledPackages(importlib.metadata.packages_distributions)
    with ExitStack() as stack:
        stack.enter_context(patch("importlib.metadata.packages_distributions", lambda: packages))
        stack.enter_context(patch.object(torch.distributed, "is_available", lambda: False))
        stack.callback(skeletons_on_cpu.reset, skeletons_on_cpu.set(True))
        stack.callback(_remove_late_modules)
        sys.modules.update({name: LateModule(name) for name in LATE if name not in sys.modules})
        bare = {name: _bare_package(name) for name in _BARE if name not in sys.modules}
        sys.modules.update(bare)
        try:
            if importlib.util.find_spec("transformers") is not None:
                stack.enter_context(_list_models_once())
            yield
        finally:
            for name, package in bare.items():
                if sys.modules.get(name) is package:
                    del sys.modules[name]


@contextmanager
def _list_models_once() -> Iterator[None]:
    """Let ``transformers.models`` take its list of modules from that of ``transformers``.

    Otherwise the library reads the 2,000 files of its models twice, which takes 0.3 s each time.
    """
    import transformers
    from transformers.utils import import_utils

    directory = Path(transformers.__file__).parent / "models"
    read_modules = import_utils.define_import_structure

    def define_modules(path: Any, prefix: str | None = None) -> Mapping[Any, Mapping[str, Any]]:
        if Path(path) != directory / "__init__.py" or prefix is not None:
            return read_modules(path, prefix)
        return {  # the library caches the list, and added modules outside of the package to it
            backends: {name.removeprefix("models."): names for name, names in modules.items() if name[:7] == "models."}
            for backends, modules in read_modules(directory, prefix="models").items()
        }

    with patch.object(import_utils, "define_import_structure", define_modules):
        yield


def _remove_late_modules() -> None:
    """Let the next import of each late module be a real one."""
    for name in LATE:
        if isinstance(sys.modules.get(name), LateModule):
            del sys.modules[name]


def _bare_package(name: str) -> ModuleType:
    """Return an empty package that finds the modules of the real one."""
    package = BarePackage(name)
    top, *parts = name.split(".")
    spec = importlib.util.find_spec(top)
    package.__path__ = [str(Path(directory, *parts)) for directory in (spec and spec.submodule_search_locations) or ()]
    return package


def _return_function(function: Any = None, *_: Any, **__: Any) -> Any:
    """Return ``function``, or a decorator that returns it."""
    return function if function is not None else _return_function
