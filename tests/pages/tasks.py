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
from omnibus.reference.comments import field_comments, to_markdown
from omnibus.task import CompositeTask, Part, Stream, TaskInput, TaskOutput, UnitTask, library
from omnibus.task.types import ON_DEMAND

HEAD = """# Tasks

The unit tasks and composite tasks of `omnibus.task.library`, and what `omnibus.task` has for graphs of your own;
[Writing models and apps](apps.md) explains how they are used.

- **Tensor**: an array in shared memory; shapes are in brackets. Inside `invoke` it is a placeholder, `await` gives a
  numpy array.
- **Stream of T**: parts as they are made; `async for` gives a `T` each, `await` all of them joined.
- An output **on demand** is only made when another task or the client reads it.
- Every call may raise `StageUnavailable`, `StageFailed`, `DeadlineExceeded` and `Overloaded`; errors that a task raises
  beside these are named with it. [Errors](errors.md) has their codes.

This page is made from `shared/omnibus/task`, by `python -m tests.pages`.
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
_NO_BREAK = "\N{NO-BREAK SPACE}"


def make_page() -> str:
    parts = [HEAD, *_unit_section(), *_parts_section(), *_composite_section(), *_functions_section()]
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
    order = ["media", "language", "speech", "diffusion", "chat", "images", "videos"]
    return sorted(
        (each for each in classes if issubclass(each, base)),
        key=lambda each: (order.index(each.__module__.rpartition(".")[2]), inspect.getsourcelines(each)[1]),
    )


def _unit_section() -> Iterator[str]:
    yield "## Unit tasks\n\n| task | service | kind | takes | gives |\n|---|---|---|---|---|"
    for task in unit_tasks():
        takes = ", ".join(f"`{name}`" for name in task.inputs_type.model_fields)
        gives = ", ".join(f"`{name}`" for name in task.outputs_type.model_fields)
        yield f"| [`{task.__name__}`](#{task.__name__.lower()}) | {task.service} | `{task.kind}` | {takes} | {gives} |"
    yield (
        "\nEvery unit task has the fields "
        + " and ".join(f"`{name}` ({text[:1].lower()}{text[1:].rstrip('.')})" for name, text in COMMON.items())
        + (
            ". Tasks that are equal in all fields are one task: all apps share its executors. Executors subscribe to"
            " `omnibus.task.` and the task's `name`.\n"
        )
    )
    shown_types: dict[type, type] = {}
    for task in unit_tasks():
        yield f"### {task.__name__}\n\n{_format_prose(task)}\n"
        own = {name: field for name, field in task.model_fields.items() if name not in COMMON}
        if own:
            yield _format_table("field", task, own)
        yield from _model_section("Inputs", task.inputs_type, task, shown_types)
        yield from _model_section("Outputs", task.outputs_type, task, shown_types)


def _parts_section() -> Iterator[str]:
    yield "## Parts of streams\n"
    for part in stream_parts():
        yield f"### {part.__name__}\n\n{_format_prose(part)}\n"
        yield _format_table("field", part, part.model_fields)


def _composite_section() -> Iterator[str]:
    yield "## Composite tasks\n"
    shown_types: dict[type, type] = {}
    for task in composite_tasks():
        request, answer = request_and_answer(task)
        yield f"### {task.__name__}\n\n{_format_prose(task)}\n"
        yield _format_table("field", task, task.model_fields)
        for title, kind in (("Request", request), ("Answer", answer)):
            yield from _model_section(title, kind, task, shown_types)


def _model_section(title: str, kind: type[BaseModel], task: type, shown_types: dict[type, type]) -> Iterator[str]:
    """Fields of ``kind``, or a link to the task that shows them."""
    first = shown_types.setdefault(kind, task)
    if first is not task:
        yield f"{title}, `{kind.__name__}`: as of [{first.__name__}](#{first.__name__.lower()}).\n"
        return
    about = "" if kind.__doc__ in (None, TaskInput.__doc__, TaskOutput.__doc__) else f" {_format_prose(kind)}"
    yield f"{title}, `{kind.__name__}`:{about}\n"
    yield _format_table(title.lower(), kind, kind.model_fields)


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


def _format_table(title: str, owner: type[BaseModel], fields: Any) -> str:
    """Rows of ``fields``; a field without a comment shares the previous one."""
    is_output = title == "outputs"
    rows = [f"| {title} | type | {'made' if is_output else 'default'} | meaning |", "|---|---|---|---|"]
    comments = field_comments(owner)
    comment = ""
    for name, field in fields.items():
        comment = comments.get(name) or comment
        default = "" if field.default is PydanticUndefined else _format_default(field.default)
        if is_output:
            default = "on demand" if ON_DEMAND in field.metadata or _on_demand(field.annotation) else "always"
        kind = f"{_type_name(field.annotation)}{_format_bounds(field)}"
        rows.append(f"| `{name}` | {kind.replace(' ', _NO_BREAK)} | {default} | {to_markdown(comment)} |")
    return "\n".join([*rows, ""])


def _format_default(value: Any) -> str:
    if value == "" or value == () or value == [] or value == {}:
        return "empty"
    return f"`{value!r}`"


def _format_bounds(field: Any) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [
        f"{sign} {_format_number(value)}"
        for each in field.metadata
        for name, sign in signs.items()
        if (value := getattr(each, name, None)) is not None
    ]
    return f" ({', '.join(bounds)})" if bounds else ""


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
    return f"[{name}](#{name.lower()})" if is_linked else name


def _format_prose(subject: Any) -> str:
    paragraphs = (inspect.getdoc(subject) or "").split("\n\n")
    return "\n\n".join(to_markdown(" ".join(each.split())).replace("\\|", "|") for each in paragraphs)
