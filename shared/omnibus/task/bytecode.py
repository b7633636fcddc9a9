"""Static reading of a function's code: the objects it names, and its assignments. The code does not run."""

import builtins
import dis
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import BaseModel


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
