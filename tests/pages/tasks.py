"""The page of the task library: unit tasks, composite tasks, and functions, from annotations, comments and docstrings."""

import inspect
import re
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import omnibus.task
from omnibus import errors
from omnibus.reference.fields import field_comments, to_markdown
from omnibus.task import CompositeTask, Part, Stream, TaskInput, TaskOutput, UnitTask, library
from omnibus.task.types import ON_DEMAND

HEAD = """# Tasks

The unit tasks and composite tasks of `omnibus.task.library`, and functions of `omnibus.task` for graphs of your own.
[Writing models and apps](apps.md) explains how to use them.

- **Tensor**: an array in shared memory; shapes are in brackets. In `invoke` it is a placeholder, and `await` returns a
  numpy array.
- **Stream of T**: parts as they are made. `async for` yields a `T` each, and `await` joins all of them.
- An output **on demand** is only made if another task or the client reads it.
- Every call may raise `StageUnavailable`, `StageFailed`, `DeadlineExceeded` and `Overloaded`. Further errors of a task
  are named with it; [errors](errors.md) has their codes.

`python -m tests.pages` writes this page from `shared/omnibus/task`.
"""
#: Fields of all unit tasks, which the page lists once.
COMMON = {
    "model": "Model that the component is of, as the plan names it.",
    "component": "The component's name in the plan; empty: `kind`.",
}
#: Functions in which apps and graphs are written.
FUNCTIONS = ("choose", "pinned", "tool", "merged", "run", "record", "replay", "tasks_of", "use")
_CONTAINERS = {Stream: "stream", list: "list", tuple: "tuple"}
_RAISED = re.compile(r"``(\w+)``")


def make_page() -> str:
    owners: dict[type, type] = {}
    parts = [HEAD, *_unit_section(owners), *_parts_section(owners), *_composite_section(owners), *_functions_section()]
    return "\n".join(parts).rstrip() + "\n"


def unit_tasks() -> list[type[UnitTask]]:
    return _library_classes(UnitTask)


def composite_tasks() -> list[type[CompositeTask]]:
    return _library_classes(CompositeTask)


def stream_parts() -> list[type[Part]]:
    return _library_classes(Part)


def request_and_answer(task: type[CompositeTask]) -> tuple[type[BaseModel], type[BaseModel]]:
    """Annotated types of ``invoke``'s request and answer."""
    hints = get_type_hints(task.invoke)
    answer = hints.pop("return")
    return next(iter(hints.values())), answer


def raised_errors(task: type) -> list[str]:
    """Names of the errors in the ``Raises`` of the docstring of ``task``.

    "Raises as" another task stands for the errors of that task.
    """
    _, _, raises = (inspect.getdoc(task) or "").partition("Raises ")
    names = _RAISED.findall(raises)
    if raises.startswith("as "):
        return raised_errors(getattr(library, names[0]))
    return [name for name in names if hasattr(errors, name)]


def _library_classes(base: type) -> list[Any]:
    """Library classes derived from ``base``, by module in their written order."""
    classes = [each for name in library.__all__ if isinstance(each := getattr(library, name), type)]
    order = [
        *("media", "language", "image_text", "reranking", "speech", "recognition", "diffusion", "chat"),
        *("images", "videos"),
    ]
    return sorted(
        (each for each in classes if issubclass(each, base)),
        key=lambda each: (order.index(each.__module__.rpartition(".")[2]), inspect.getsourcelines(each)[1]),
    )


def _unit_section(owners: dict[type, type]) -> Iterator[str]:
    common = " and ".join(f"`{name}` ({text[:1].lower()}{text[1:].rstrip('.')})" for name, text in COMMON.items())
    yield f"## Unit tasks\n\nEvery unit task has the fields {common}. Equal tasks share their executors.\n"
    for task in unit_tasks():
        yield f"### {task.__name__}\n\n{_format_prose(task)}\n\nService {task.service}, kind `{task.kind}`.\n"
        own = {name: field for name, field in task.model_fields.items() if name not in COMMON}
        if own:
            yield _list(task, own)
        yield from _model_section("Inputs", task.inputs_type, task, owners)
        yield from _model_section("Outputs", task.outputs_type, task, owners)


def _parts_section(owners: dict[type, type]) -> Iterator[str]:
    yield "## Parts of streams\n"
    for part in stream_parts():
        yield f"### {part.__name__}\n\n{_format_prose(part)}\n"
        yield _list(part, part.model_fields, owners)
        owners[part] = part


def _composite_section(owners: dict[type, type]) -> Iterator[str]:
    yield "## Composite tasks\n"
    for task in composite_tasks():
        request, answer = request_and_answer(task)
        yield f"### {task.__name__}\n\n{_format_prose(task)}\n"
        yield _list(task, task.model_fields, owners)
        owners[task] = task
        for title, kind in (("Request", request), ("Answer", answer)):
            yield from _model_section(title, kind, task, owners)


def _model_section(title: str, kind: type[BaseModel], task: type, owners: dict[type, type]) -> Iterator[str]:
    """Fields of ``kind``, or a link to the task that shows them."""
    first = owners.get(kind)
    if first is not None:
        yield f"{title}, `{kind.__name__}`: as of {_link(first)}.\n"
        return
    about = "" if kind.__doc__ in (None, TaskInput.__doc__, TaskOutput.__doc__) else f" {_summary(kind)}"
    yield f"{title}, `{kind.__name__}`:{about}\n"
    yield _list(kind, kind.model_fields, owners, is_output=title == "Outputs")
    owners[kind] = task


def _functions_section() -> Iterator[str]:
    yield "## Functions\n\nOf `omnibus.task`, for `invoke` and for an app's `serve`.\n"
    for name in FUNCTIONS:
        function = getattr(omnibus.task, name)
        yield f"### {name}\n\n```python\n{_format_signature(name, function)}\n```\n\n{_format_prose(function)}\n"


def _format_signature(name: str, function: Any) -> str:
    """Head of ``function``: ``async def``, ``def``, or ``with`` for a context manager."""
    function = inspect.unwrap(function)
    parameters, _, result = str(inspect.signature(function)).partition(" -> ")
    if inspect.isgeneratorfunction(function):
        return f"with {name}{_short_names(parameters)}:"
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    return f"{'async ' * is_async}def {name}{_short_names(parameters)} -> {_short_names(result)}"


def _short_names(text: str) -> str:
    return re.sub(r"\b(?:omnibus|collections|typing)\.(?:\w+\.)*", "", text)


def _list(owner: type[BaseModel], fields: Any, owners: dict[type, type] | None = None, is_output: bool = False) -> str:
    """Items of ``fields``; a field without a comment shares the previous one.

    ``owners`` are the classes on the make_page so far, with their tasks: their fields are a link.
    """
    base = next((each for each in owner.__mro__[1:] if each in (owners or {})), None)
    inherited = set(base.model_fields) if base is not None else set()  # type: ignore[attr-defined]
    source = f"`{base.__name__}` of " if base is not None and owners and owners[base] is not base else ""
    items = [f"- The fields of {source}{_link(owners[base])}."] if owners and base is not None else []
    comments = field_comments(owner)
    rows: dict[tuple[str, str], list[str]] = {}
    comment = ""
    for name, field in fields.items():
        comment = comments.get(name) or comment
        if name not in inherited:
            kind = f"{_type_name(field.annotation)}{_format_bounds(field)}{_made(field) if is_output else _format_default(field)}"
            rows.setdefault((kind, to_markdown(comment)), []).append(f"`{name}`")
    items += [f"- {', '.join(names)} ({kind}): {comment}" for (kind, comment), names in rows.items()]
    return "\n".join([*items, ""])


def _link(task: type) -> str:
    return f"[{task.__name__}](#{task.__name__.lower()})"


def _made(field: Any) -> str:
    return ", on demand" if ON_DEMAND in field.metadata or _on_demand(field.annotation) else ""


def _format_default(field: Any) -> str:
    value = field.default
    if value is PydanticUndefined:
        return ""
    return ", optional" if value in (None, "", (), [], {}) else f", default `{value!r}`"


def _format_bounds(field: Any) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {_format_number(value)}"
        for each in field.metadata
        for name, sign in signs.items()
        if (value := getattr(each, name, None)) is not None
    ]
    return f" {', '.join(bounds)}" if bounds else ""


def _format_number(value: float) -> str:
    return "2^62" if value == 2**62 else f"{value:g}"


def _on_demand(annotation: Any) -> bool:
    return ON_DEMAND in getattr(annotation, "__metadata__", ())


def _type_name(annotation: Any) -> str:
    """An annotation in words: ``Stream[TextChunk]`` as ``stream of TextChunk``."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_name(annotation.__origin__)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_type_name, arguments)))
    if origin is dict:
        return f"dict of {_type_name(arguments[0])} to {_type_name(arguments[1])}"
    if origin in _CONTAINERS:
        return f"{_CONTAINERS[origin]} of {_type_name(arguments[0])}"
    return _simple_name(annotation)


def _simple_name(annotation: Any) -> str:
    if annotation is Any:
        return "any"
    if annotation is NoneType:
        return "None"
    name = "array" if annotation.__name__ == "ndarray" else annotation.__name__
    is_linked = isinstance(annotation, type) and issubclass(annotation, UnitTask | CompositeTask | Part)
    return _link(annotation) if is_linked else name


def _summary(documented: Any) -> str:
    """The docstring without paragraphs about single fields, which the list of fields repeats."""
    first, *others = _format_prose(documented).split("\n\n")
    return "\n\n".join([first, *(each for each in others if not each.startswith(("`", "[")))])


def _format_prose(subject: Any) -> str:
    paragraphs = (inspect.getdoc(subject) or "").split("\n\n")
    return "\n\n".join(to_markdown(" ".join(each.split())).replace("\\|", "|") for each in paragraphs)
