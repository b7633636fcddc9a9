"""The current runtime, which runs the tasks of an app's ``serve``.

Static reading of a function's code: the objects it names, and its assignments. The code does not run.

Static check for an ``invoke`` that depends on, or changes, outside state.

Reads the code without running it: the origins of the names that it uses, and its assignments. It follows ``self`` and
functions of the same package. Deeper dependencies are found when a replay differs from the record.
"""

import asyncio
import builtins
import dis
import inspect
import sys
import types
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
)
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeVar, TypeVarTuple, cast, overload

from pydantic import BaseModel

from omnibus.errors import PlaceholderError, SideEffect
from omnibus.task.dynamic import run_live
from omnibus.task.record import record, replay
from omnibus.task.result import Source
from omnibus.task.session import Segment, current_session


class CodeStep(NamedTuple):
    """One instruction. ``found`` is the object that it names, ``receiver`` the owner of that attribute."""

    found: Any = None
    path: str = ""
    receiver: Any = None
    changes: str = ""  # assigned object outside of the function
    imports: str = ""


def read_code(function: Any, owner: Any) -> Iterator[CodeStep]:
    """Yield the steps of ``function`` and of the functions inside of it. ``owner`` is its ``self``.

    Code between ``tool`` and its ``await`` is skipped, since it runs only once.
    """
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    outer = {name: cell.cell_contents for name, cell in cells.items() if cell != types.CellType()}
    if owner is not None and function.__code__.co_argcount:
        outer[function.__code__.co_varnames[0]] = owner
    for code in _nested_codes(function.__code__):
        yield from _CodeReader(code, function, outer).read_steps()


def _nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested_codes(constant)


class _CodeReader:
    """Reads one code object in order; branches and loops are read as if all ran once."""

    def __init__(self, code: types.CodeType, function: Any, outer: dict[str, Any]) -> None:
        self._code = [
            each for each in dis.get_instructions(code) if each.opname not in ("CACHE", "EXTENDED_ARG", "RESUME")
        ]
        self._function = function
        self._local: dict[str, tuple[Any, str]] = {name: (value, name) for name, value in outer.items()}
        self._module: Any = None
        self._after: list[tuple[Any, str]] = []  # object and path, after each instruction
        self._in_tool = False

    def read_steps(self) -> Iterator[CodeStep]:
        value: Any = None
        path = ""
        for index, each in enumerate(self._code):
            receiver = None
            step = self._store_step(index, each, value, path)
            if each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                receiver, value, path = value, _static_attribute(value, each.argval), f"{path}.{each.argval}"
            else:
                value, path = self._loaded_object(each)
            self._in_tool = (self._in_tool and each.opname != "GET_AWAITABLE") or _is_tool(value)
            self._after.append((value, path))
            if step is None:
                imports = str(each.argval) if each.opname == "IMPORT_NAME" else ""
                step = CodeStep(value, path, receiver, imports=imports)
            if not self._in_tool:
                yield step

    def _loaded_object(self, each: dis.Instruction) -> tuple[Any, str]:
        name = each.argval
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            return self._function.__globals__.get(name, getattr(builtins, name, None)), name
        if each.opname in ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_CLOSURE"):
            return self._local.get(name, (None, ""))
        if each.opname == "IMPORT_NAME":
            self._module = sys.modules.get(name)
            return self._module, name
        if each.opname == "IMPORT_FROM":
            return _static_attribute(self._module, name), f"{getattr(self._module, '__name__', '')}.{name}"
        return None, ""

    def _store_step(self, index: int, each: dis.Instruction, value: Any, path: str) -> CodeStep | None:
        """Return the step of a store to an outside object, or None."""
        if each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            return CodeStep(changes=f"the global {each.argval!r}")
        if each.opname == "STORE_DEREF" and each.argval in self._function.__code__.co_freevars:
            return CodeStep(changes=f"the outer variable {each.argval!r}")
        if each.opname in ("STORE_FAST", "STORE_DEREF"):
            self._local[each.argval] = (value, path)
        elif each.opname in ("STORE_ATTR", "DELETE_ATTR") and value is not None:
            return CodeStep(changes=f"{path}.{each.argval}")
        elif each.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            container, target = self._before_key(index)
            if container is not None:
                return CodeStep(changes=target)
        return None

    def _before_key(self, index: int) -> tuple[Any, str]:
        """Return the object, and its path, below the key of ``container[key]``."""
        if self._code[index - 1].opname == "SWAP":  # container[key] += ...: both were copied before
            while index and [each.opname for each in self._code[index - 2 : index]] != ["COPY", "COPY"]:
                index -= 1
            index -= 2
        missing = 1
        for back in range(index - 1, 0, -1):
            each = self._code[back]
            missing -= dis.stack_effect(each.opcode, each.arg, jump=False)
            if missing <= 0:
                return self._after[back - 1]
        return None, ""


def _is_tool(value: Any) -> bool:
    return getattr(value, "__module__", "") == "omnibus.task.runtime" and getattr(value, "__name__", "") == "tool"


def _static_attribute(owner: Any, name: str) -> Any:
    """Return an attribute, as far as possible without running code."""
    if isinstance(owner, types.ModuleType):
        return vars(owner).get(name)
    if isinstance(owner, type):
        return getattr(owner, name, None)
    if owner is None or not isinstance(owner, BaseModel):
        return getattr(type(owner), name, None) if owner is not None else None
    if name in owner.__dict__:
        return owner.__dict__[name]
    attribute = inspect.getattr_static(type(owner), name, None)
    attribute = attribute.fget if isinstance(attribute, property) else attribute
    return types.MethodType(attribute, owner) if inspect.isfunction(attribute) else attribute


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


R = TypeVar("R")
A = TypeVar("A")
Arguments = TypeVarTuple("Arguments")

#: Number of functions for which it is cached whether they are asynchronous: the check takes several microseconds.
_MAX_KNOWN_FUNCTIONS = 1024


class Runtime(Protocol):
    """Runner of recorded segments: a gateway, or an app's worker process on behalf of a gateway."""

    async def submit(self, segment: Segment, step: int) -> Mapping[tuple[int, str], Source]:
        """Send ``segment``, the ``step``-th of its request; returns the sources of its outputs."""

    def choice_point(self, site: int) -> float:
        """Return the request's point in [0, 1) for its ``site``-th choice.

        The points of many requests are evenly distributed.
        """


class MediaRuntime(Runtime, Protocol):
    """A runtime with which apps can place media."""

    async def place_media(self, data: bytes, modality: str) -> dict[str, Any]:
        """Place a file for encoders; returns its handle for calls.

        ``modality`` is ``image``, ``video`` or ``audio``; with "", it is detected from the first bytes. Raises
        ``BadMedia`` and ``TooLarge``.
        """


class _Request:
    """One request: its runtime, and the numbers of its segments, choices and equal calls."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._steps = count()
        self._sites = count()
        self.calls: dict[str, int] = {}
        self.submit = runtime.submit
        self.place_media = getattr(runtime, "place_media", None)

    def next_step(self) -> int:
        return next(self._steps)

    def choice_point(self, _: int) -> float:
        return self._runtime.choice_point(next(self._sites))


_request: ContextVar[_Request | None] = ContextVar("omnibus_request", default=None)


@contextmanager
def use(runtime: Runtime) -> Iterator[None]:
    """Run the tasks called inside on ``runtime``, as segments of one request."""
    token = _request.set(_Request(runtime))
    try:
        yield
    finally:
        _request.reset(token)


async def run(invoke: Callable[[R], A | Coroutine[Any, Any, A]], request: R) -> A:
    """Run ``invoke`` on the current runtime.

    A plain one is recorded, sent and replayed; an async one runs live.
    """
    if current_session() is not None:
        raise PlaceholderError("inside of `invoke` call a task's `.invoke(...)`, not the task itself")
    around = _request.get()
    if around is None:
        raise PlaceholderError("a task was called without a runtime: call it in an app's `serve`")
    check_purity(invoke)
    if _is_coroutine_function(getattr(invoke, "__func__", invoke)):
        live = cast(Callable[[R], Awaitable[A]], invoke)
        return await run_live(around, around.choice_point, live, request)
    step = around.next_step()
    segment = record(invoke, request, around.choice_point, step, scope=around, calls=around.calls)
    return replay(invoke, request, segment, await around.submit(segment, step), step, scope=around)


@lru_cache(_MAX_KNOWN_FUNCTIONS)
def _is_coroutine_function(function: Any) -> bool:
    return inspect.iscoroutinefunction(function)


async def place_media(data: bytes, modality: str) -> dict[str, Any]:
    """Place a file on the current runtime, see ``MediaRuntime``; once per request."""
    around = _request.get()
    if around is None or around.place_media is None:
        raise PlaceholderError("place media in an app's `serve`, or in an async `invoke`")
    reference: dict[str, Any] = await tool(around.place_media, data, modality)
    return reference


@overload
async def tool(function: Callable[[*Arguments], Awaitable[A]], *arguments: *Arguments) -> A: ...
@overload
async def tool(function: Callable[[*Arguments], A], *arguments: *Arguments) -> A: ...
async def tool(function: Callable[..., Any], *arguments: Any) -> Any:  # type: ignore[misc]
    """Call ``function`` (plain or async) once per request, for calls with effects.

    When ``invoke`` runs again, the result is repeated, not the call.
    """
    effect = getattr(current_session(), "effect", None)
    if effect is not None:
        return await effect(function, arguments)
    result = function(*arguments)
    return await result if inspect.isawaitable(result) else result


async def merged(streams: Mapping[str, AsyncIterable[A]]) -> AsyncIterator[tuple[str, A]]:
    """Yield parts of several streams as they arrive, with the stream's name.

    Raises the error of a stream that fails, after its earlier parts, and stops reading the others.
    """
    news: asyncio.Queue[tuple[str, Any, bool, Exception | None]] = asyncio.Queue(maxsize=2 * len(streams) or 1)

    async def read_stream(name: str, stream: AsyncIterable[Any]) -> None:
        parts = aiter(stream)
        try:
            async for part in parts:
                await news.put((name, part, False, None))
            await news.put((name, None, True, None))
        except Exception as error:  # noqa: BLE001 - every error is raised to the reader
            await news.put((name, None, True, error))
        finally:
            if isinstance(parts, AsyncGenerator):
                await parts.aclose()

    readers = [asyncio.ensure_future(read_stream(name, stream)) for name, stream in streams.items()]
    left = len(readers)
    try:
        while left:
            name, part, last, error = await news.get()
            if error is not None:
                raise error
            left -= last
            if not last:
                yield name, part
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
