"""Whether an ``invoke`` obviously depends on, or changes, what is outside of its request.

Looks at the code, without running it: which modules its global names come from, and whether it assigns
to globals. What hides deeper is found when replay differs from the record.
"""

import builtins
import dis
import inspect
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

from omnibus.errors import SideEffect

#: Modules whose functions give another result, or have an effect, on every call.
_IMPURE = frozenset(
    {
        "aiohttp", "ftplib", "http", "httpx", "io", "multiprocessing", "nats", "pathlib", "random", "redis", "requests", "secrets",
        "shutil", "smtplib", "socket", "sqlite3", "subprocess", "tempfile", "threading", "time", "urllib", "urllib3", "uuid", "webbrowser",
    }
)  # fmt: skip
#: Single names of modules that are harmless otherwise.
_IMPURE_NAMES = frozenset(
    {
        "asyncio.sleep", "asyncio.open_connection", "asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell", "builtins.open",
        "builtins.input", "builtins.id", "builtins.hash", "builtins.exec", "builtins.eval", "builtins.globals", "datetime.now",
        "datetime.utcnow", "datetime.today", "os.getenv", "os.getpid", "posix.getpid", "os.popen", "posix.system", "posix.remove", "posix.unlink",
        "numpy.random",
    }
)  # fmt: skip

_checked: dict[types.CodeType, str] = {}


def check(invoke: Callable[[Any], Any]) -> None:
    """Raise ``SideEffect`` when ``invoke``, or a function of its module that it names, is obviously impure."""
    function = inspect.unwrap(getattr(invoke, "__func__", invoke))
    code = getattr(function, "__code__", None)
    if code is None:
        return
    if code not in _checked:
        _checked[code] = next(_faults(function, set()), "")
    if _checked[code]:
        name = getattr(invoke, "__qualname__", "invoke")
        raise SideEffect(
            f"{name} {_checked[code]}: `invoke` runs twice and must follow from its request alone; do that in the app's "
            "`serve`, pass its result in, or wrap it in `omnibus.task.tool` in an async `invoke`"
        )


def _faults(function: Any, seen: set[types.CodeType]) -> Iterator[str]:
    code = function.__code__
    if code in seen:
        return
    seen.add(code)
    for each in _codes(code):
        yield from _of_code(each, function, seen)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """``code`` and what is defined inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _of_code(code: types.CodeType, function: Any, seen: set[types.CodeType]) -> Iterator[str]:
    for step, found, path in _named(code, function):
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            yield f"changes the global {step.argval!r}"
        elif step.opname == "IMPORT_NAME" and str(step.argval).partition(".")[0] in _IMPURE:
            yield f"uses {step.argval}"
        elif found is not None and _impure(found):
            yield f"uses {path}"
        elif inspect.isfunction(found) and found.__module__ == function.__module__:
            yield from _faults(found, seen)


def _named(code: types.CodeType, function: Any) -> Iterator[tuple[dis.Instruction, Any, str]]:
    """Each instruction with the object that it names, if it is global or an attribute of a global module or
    class. What stands between `tool` and its `await` is left out: it runs once."""
    found: Any = None
    path, in_tool = "", False
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found, path = _global(function, step.argval), str(step.argval)
            in_tool = in_tool or _is_tool(found)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            found, path = getattr(found, step.argval, None) if _is_plain(found) else None, f"{path}.{step.argval}"
        else:
            found = None
            in_tool = in_tool and step.opname != "GET_AWAITABLE"
        yield step, None if in_tool else found, path


def _is_tool(found: Any) -> bool:
    return getattr(found, "__module__", "") == "omnibus.task.running" and found.__name__ == "tool"


def _is_plain(found: Any) -> bool:
    """Whether looking at an attribute of ``found`` runs no code of its own."""
    return isinstance(found, types.ModuleType | type)


def _global(function: Any, name: str) -> Any:
    if name in function.__globals__:
        return function.__globals__[name]
    return getattr(builtins, name, None)


def _impure(found: Any) -> bool:
    if isinstance(found, types.ModuleType):
        return found.__name__ in _IMPURE_NAMES
    owner = getattr(found, "__self__", None)
    source = owner if isinstance(owner, type) else type(owner) if owner is not None else None
    module = str(getattr(found, "__module__", None) or getattr(source, "__module__", "")).lstrip("_")
    name = str(getattr(found, "__name__", ""))
    kind = getattr(source, "__name__", "")
    top = module.partition(".")[0]
    names = {f"{module}.{name}", f"{top}.{name}", f"{kind}.{name}"}
    return top in _IMPURE or found is os.environ or (found is os.urandom) or bool(names & _IMPURE_NAMES)
