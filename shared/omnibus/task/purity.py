"""Static check for an ``invoke`` that depends on, or changes, outside state.

Reads the code without running it: the origins of the names that it uses, and its assignments. It follows ``self`` and
functions of the same package. Deeper dependencies are found when a replay differs from the record.
"""

import inspect
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from omnibus.errors import SideEffect
from omnibus.task.bytecode import CodeStep, read_code

#: Modules whose functions have an effect, or another result on every call.
_IMPURE = frozenset(
    {
        "aiohttp", "ftplib", "genericpath", "http", "httpx", "io", "multiprocessing", "nats", "nt", "os", "pathlib",
        "posix", "random", "redis", "requests", "secrets", "shutil", "smtplib", "socket", "sqlite3", "subprocess",
        "tempfile", "threading", "time", "urllib", "urllib3", "uuid", "webbrowser",
    }
)  # fmt: skip
#: Single impure names of modules that are otherwise harmless.
_IMPURE_NAMES = frozenset(
    {
        "asyncio.as_completed", "asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell",
        "asyncio.open_connection", "asyncio.sleep", "asyncio.timeout", "asyncio.timeout_at", "asyncio.to_thread",
        "asyncio.wait_for", "builtins.eval", "builtins.exec", "builtins.globals", "builtins.hash", "builtins.id",
        "builtins.input", "builtins.open", "date.today", "datetime.now", "datetime.today", "datetime.utcnow",
        "numpy.random",
    }
)  # fmt: skip
#: Harmless names of impure modules.
_PURE = (
    "urllib.parse", "http.HTTPStatus", "pathlib.Pure", "uuid.UUID", "uuid.uuid3", "uuid.uuid5", "io.StringIO",
    "io.BytesIO", "os.fspath", "posix.fspath", "os.fsencode", "os.fsdecode",
)  # fmt: skip
#: Methods that change their object.
_CHANGING = frozenset(
    {
        "add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "extendleft", "insert",
        "pop", "popitem", "popleft", "remove", "reverse", "setdefault", "sort", "subtract", "update",
    }
)  # fmt: skip
_CONTAINERS = (list, dict, set, deque, bytearray)

_checked: dict[tuple[types.CodeType, type], str] = {}


def check_purity(invoke: Callable[[Any], Any]) -> None:
    """Raise ``SideEffect`` if ``invoke`` or a function it uses is obviously impure."""
    function = inspect.unwrap(getattr(invoke, "__func__", invoke))
    code = getattr(function, "__code__", None)
    if code is None:
        return
    owner = getattr(invoke, "__self__", None)
    key = (code, type(owner))
    if key not in _checked:
        _checked[key] = next(_find_faults(function, owner, set()), "")
    if _checked[key]:
        name = getattr(invoke, "__qualname__", "invoke")
        raise SideEffect(
            f"{name} {_checked[key]}: `invoke` runs twice and must depend only on its request. Do that in the app's "
            "`serve` and pass its result in, or wrap it in `omnibus.task.tool` in an async `invoke`"
        )


def _find_faults(function: Any, owner: Any, visited_codes: set[types.CodeType]) -> Iterator[str]:
    if function.__code__ in visited_codes:
        return
    visited_codes.add(function.__code__)
    for step in read_code(function, owner):
        if step.changes:
            yield f"changes {step.changes}"
        elif step.imports.partition(".")[0] in _IMPURE and not step.imports.startswith(_PURE):
            yield f"uses {step.imports}"
        elif step.found is not None:
            yield from _object_faults(step, function, visited_codes)


def _object_faults(step: CodeStep, function: Any, visited_codes: set[types.CodeType]) -> Iterator[str]:
    """Yield the faults of using the object of ``step``."""
    value = step.found
    if isinstance(step.receiver, _CONTAINERS) and step.path.rpartition(".")[2] in _CHANGING:
        yield f"changes {step.path.rpartition('.')[0]}"
    elif is_impure(value):
        yield f"uses {step.path}"
    elif inspect.ismethod(value) and inspect.isfunction(value.__func__) and value.__self__ is not function:
        yield from _find_faults(value.__func__, value.__self__, visited_codes)
    elif inspect.isfunction(value) and _top_package(value) == _top_package(function):
        yield from _find_faults(value, None, visited_codes)


def _top_package(function: Any) -> str:
    return str(function.__module__).partition(".")[0]


def is_impure(value: Any) -> bool:
    """Return whether ``value`` has an effect, or another result on every use."""
    if isinstance(value, types.ModuleType):
        return value.__name__ in _IMPURE_NAMES
    module, name, kind = _qualified_name(value)
    if f"{module}.{name}".startswith(_PURE):
        return False
    top = module.partition(".")[0]
    names = {f"{module}.{name}", f"{top}.{name}", f"{kind}.{name}"}
    return top in _IMPURE or module.startswith("numpy.random") or bool(names & _IMPURE_NAMES)


def _qualified_name(value: Any) -> tuple[str, str, str]:
    """Return module, name and class of ``value``; for an instance, those of its class."""
    owner = getattr(value, "__self__", None) or getattr(value, "__objclass__", None)
    if not hasattr(value, "__name__"):
        owner, value = None, type(value)
    source = owner if isinstance(owner, type) else type(owner) if owner is not None else None
    module = (
        value.__module__ if isinstance(getattr(value, "__module__", None), str) else getattr(source, "__module__", "")
    )
    return str(module).lstrip("_"), str(value.__name__), getattr(source, "__name__", "")
