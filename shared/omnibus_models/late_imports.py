"""Imports the libraries of models without parts that serving does not call.

The libraries import losses, training schedulers and their numeric libraries together with a model. That takes a second
and 40 MB in each process.
"""

import functools
import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

#: Modules whose functions transformers calls in losses, and diffusers in some schedulers.
LATE = ("scipy.integrate", "scipy.optimize", "scipy.stats")


class LateModule(ModuleType):
    """Module whose functions import the real one when they are called."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):  # what the import system and ``inspect`` ask for
            raise AttributeError(name)

        def call_imported(*values: Any, **options: Any) -> Any:
            return getattr(importlib.import_module(self.__name__), name)(*values, **options)

        return call_imported


@contextmanager
def import_late() -> Iterator[None]:
    """Import models in this context without the modules ``LATE``, which are imported when they are called.

    After it, every import is a real one. A module that is imported already stays.
    """
    # transformers and diffusers each read the files of all installed packages.
    find_packages = importlib.metadata.packages_distributions
    importlib.metadata.packages_distributions = functools.cache(find_packages)
    late = {name: LateModule(name) for name in LATE if name not in sys.modules}
    sys.modules.update(late)
    try:
        yield
    finally:
        importlib.metadata.packages_distributions = find_packages
        for name, module in late.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
