"""Module loader for apps that are installed, in a directory, or uploaded."""

import importlib
import importlib.util
import logging
import re
import sys
import traceback
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, PathFinder
from itertools import accumulate, pairwise
from pathlib import Path
from types import CodeType, ModuleType

from omnibus.app_record import AppSource
from omnibus.errors import BadRequest, OmnibusError
from omnibus.families import plugins

log = logging.getLogger(__name__)

IMPORT, DIRECTORY, UPLOAD = "import", "directory", "upload"

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


def load_module(source: AppSource, text: str = "") -> ModuleType:
    """Import the app of ``source``. ``text`` is the code of an upload.

    The code of an upload must run in a restricted process only. Raises ``BadRequest`` with the name of the module and
    the problem.
    """
    if source.kind == UPLOAD:
        return _import_upload(_check_name(source.module), text)
    if source.kind == DIRECTORY:
        return _import_from_root(Path(source.root), _check_name(source.module))
    if source.kind != IMPORT:
        raise BadRequest(f"unknown kind of source {source.kind[:40]!r}: it must be {IMPORT}, {DIRECTORY} or {UPLOAD}")
    return _import_module(_installed_module(source.module))


def _check_name(name: str) -> str:
    if not _MODULE.fullmatch(name):
        raise BadRequest(f"{name[:80]!r} is not the name of a Python module")
    return name


def _installed_module(name: str) -> str:
    """Return ``name`` if it is a module. Else return the module of the plugin's app with that name."""
    if _MODULE.fullmatch(name) and importlib.util.find_spec(name.partition(".")[0]) is not None:
        return name
    if name in plugins.app_names():
        return plugins.find_app_module(name)
    raise BadRequest(f"unknown module or plugin app {name[:80]!r}: install it on the gateway's machine")


def _import_module(name: str) -> ModuleType:
    with _ImportErrors(name):
        return importlib.import_module(name)


def _import_from_root(root: Path, name: str) -> ModuleType:
    """Import ``name`` from ``root`` only. Its own imports may be anywhere."""
    root = root.resolve()
    if not root.is_dir():
        raise BadRequest(f"cannot load {name}: unknown directory {str(root)!r}")
    importlib.invalidate_caches()
    top = name.partition(".")[0]
    spec = PathFinder.find_spec(top, [str(root)])
    if spec is None or not _is_below_root(root, spec):
        raise BadRequest(f"unknown module {top} in {root}")
    if top in sys.modules:
        raise BadRequest(f"the module name {top} is in use by Python: give the app's module another name")
    # Python reuses compiled code for a file of the same size and second, and an app may be rewritten within one.
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(root))
    packages = list(accumulate(name.split("."), "{}.{}".format))
    for package, inner in pairwise(packages):
        _import_module(package)
        with _ImportErrors(inner):
            spec = importlib.util.find_spec(inner)
        if spec is None or not _is_below_root(root, spec):
            raise BadRequest(f"unknown module {inner} in {root}")
    return _import_module(name)


def _is_below_root(root: Path, spec: ModuleSpec) -> bool:
    """Return whether a module is below ``root``, with links resolved."""
    places = [spec.origin] if spec.origin and spec.has_location else list(spec.submodule_search_locations or ())
    return bool(places) and all(Path(place).resolve().is_relative_to(root) for place in places)


def _import_upload(name: str, text: str) -> ModuleType:
    if "." in name or name in sys.modules or name in sys.stdlib_module_names:
        raise BadRequest(
            f"{name!r} cannot name an uploaded app: the name has a dot, or is in use by a module of Python"
        )
    if not text.strip():
        raise BadRequest(f"the text of {name} is empty")
    loader = _TextLoader(text)
    spec = importlib.util.spec_from_loader(name, loader, origin=f"{name}.py")
    assert spec is not None  # noqa: S101 - there is a loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with _ImportErrors(name):
        loader.exec_module(module)  # the only place where text of a request becomes code
    return module


class _TextLoader(InspectLoader):
    """Loads a module from its text. Tracebacks show its lines."""

    def __init__(self, text: str) -> None:
        self._text = text

    def get_source(self, fullname: str) -> str:
        return self._text

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._text, f"{fullname}.py")


class _ImportErrors:
    """Converts any error during the import of a module to ``BadRequest``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is None or not isinstance(error, Exception | SystemExit):
            return
        log.error("%s cannot be imported", self._name, exc_info=error)
        last = error.message if isinstance(error, OmnibusError) else traceback.format_exception_only(error)[-1].strip()
        raise BadRequest(
            f"the module {self._name} cannot be imported: {last[:500]}{self._error_location(error)}"
        ) from error

    def _error_location(self, error: BaseException) -> str:
        """Return the line of the app's own file that raised the error."""
        if isinstance(error, SyntaxError) and error.lineno:
            return f" ({Path(error.filename or self._name).name}, line {error.lineno})"
        file = self._name.rpartition(".")[2] + ".py"
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == file]
        return f" ({file}, line {frames[-1].lineno})" if frames else ""
