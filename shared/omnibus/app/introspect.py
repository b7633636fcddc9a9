"""Description of an app from its module: its name, its tasks, and the types of ``serve``."""

import inspect
import re
import typing
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from traceback import FrameSummary, extract_tb
from types import ModuleType
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

from omnibus.app import App
from omnibus.app.module_loader import UPLOAD, load_module
from omnibus.app.protocol import CHAT, Description
from omnibus.app.responses import ChatAnswer
from omnibus.app_record import AppSource, TaskRecord
from omnibus.errors import BadRequest
from omnibus.task import ChatInput, ChatOutput, CompositeTask, Result, Stream, TaskOutput, UnitTask, tasks_of

#: Most characters of a module's documentation.
_MAX_DOC_CHARS = 4000

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_ITERATORS = (AsyncIterator, AsyncIterable, AsyncGenerator)


@dataclass(frozen=True)
class LoadedApp:
    """App that can serve. ``response`` is the type of an answer or of its parts, None if untyped."""

    description: Description
    serve: Callable[[Any], Any]
    request: TypeAdapter[Any]
    response: TypeAdapter[Any] | None

    def find_line(self, error: BaseException) -> FrameSummary | None:
        """Return the innermost line of the app's file in the traceback. The traceback is that of ``error`` or of its
        causes."""
        line: FrameSummary | None = None
        cause: BaseException | None = error
        while cause is not None:
            frames = [frame for frame in extract_tb(cause.__traceback__) if frame.filename == self.file]
            line, cause = frames[-1] if frames else line, cause.__cause__
        return line

    @property
    def file(self) -> str:
        """Return the path of the file that defines ``serve``."""
        return str(self.serve.__code__.co_filename)


def load_app(source: AppSource, text: str = "", restrictions: tuple[str, ...] = ()) -> LoadedApp:
    """Load an app. Raises ``BadRequest`` with the name of the module and the problem."""
    module = load_module(source, text)
    try:
        return _describe_module(module, source, restrictions)
    except BadRequest as error:
        raise BadRequest(f"the module {module.__name__} is not an app: {error.message}", param=error.param) from error


def _describe_module(module: ModuleType, source: AppSource, restrictions: tuple[str, ...]) -> LoadedApp:
    app, serve = _app_declaration(module), _serve_function(module)
    request_type, return_type = _serve_types(serve)
    streams, answer = _answer_type(serve, return_type)
    if app.model and (request_type, return_type) != (ChatInput, ChatOutput):
        raise BadRequest(
            f"with the model {app.model!r}, `serve` must be `async def serve(request: ChatInput) -> ChatOutput`"
        )
    chat = request_type is ChatInput
    request, response = (
        _type_adapter(request_type, "request"),
        _type_adapter(answer, "answer") if _is_typed(answer) else None,
    )
    description = Description(
        name=app.name or module.__name__.rpartition(".")[2].lower(),
        doc=inspect.cleandoc(module.__doc__ or "")[:_MAX_DOC_CHARS],
        tasks=tuple(_task_record(task, source) for task in module_tasks(module)),
        route=CHAT if app.model else "",
        model=app.model,
        request={} if chat else _json_schema(request, "validation"),  # the gateway defines the requests of clients
        response=_json_schema(response, "serialization") if response is not None else _untyped_schema(answer),
        streams=streams,
        restricted=restrictions,
        chat=chat,
    )
    _check_names(description)
    return LoadedApp(description, serve, request, response)


def _check_names(description: Description) -> None:
    if not _NAME.fullmatch(description.name):
        raise BadRequest(
            f"the app's name {description.name[:80]!r} must have 1 to 64 lower-case letters, digits, '-' and '_': "
            'set another one with `app = App(name="...")`'
        )
    if description.model and not _MODEL.fullmatch(description.model):
        raise BadRequest(f"the model's name {description.model[:80]!r} must have letters, digits and '._:/-' only")


def _app_declaration(module: ModuleType) -> App:
    app = getattr(module, "app", None)
    if app is None:
        return App()
    if not isinstance(app, App):
        raise BadRequest("its `app` must be an `omnibus.app.App`: rename the present one")
    return app


def module_tasks(module: ModuleType) -> list[UnitTask]:
    """Return the unit tasks of all tasks in the module. Lists and dicts are included."""
    tasks: list[Any] = []
    for value in vars(module).values():
        elements = value.values() if type(value) is dict else value if type(value) in (list, tuple, set) else [value]
        tasks += [element for element in elements if isinstance(element, UnitTask | CompositeTask)]
    return tasks_of(tasks)


def _task_record(task: UnitTask, source: AppSource) -> TaskRecord:
    kind = type(task)
    if kind.own and source.kind == UPLOAD:
        raise BadRequest(f"an uploaded app cannot have its own unit tasks ({task.name}): install it instead")
    if kind.own and "." in kind.__qualname__:
        raise BadRequest(
            f"{kind.__qualname__} must be defined at the top of its module: executors import it from there"
        )
    fields = task.model_dump(mode="json", exclude={"model", "component"}, exclude_defaults=True)
    root, code = _code_origin(kind, source) if kind.own else ("", "")
    return TaskRecord(
        name=task.name,
        kind=kind.kind,
        model=task.model,
        component=task.component_name,
        service=kind.service,
        own=kind.own,
        cls=f"{kind.__module__}:{kind.__qualname__}",
        fields=fields,
        root=root,
        code=code,
    )


def _code_origin(kind: type[UnitTask], source: AppSource) -> tuple[str, str]:
    """Return the import directory of ``kind`` and the SHA-256 of its source. The directory is empty if the task is
    installed."""
    file = inspect.getsourcefile(kind)
    if file is None:
        return source.root, ""
    path = Path(file).resolve()
    is_mounted = bool(source.root) and path.is_relative_to(Path(source.root).resolve())
    return source.root if is_mounted else "", sha256(path.read_bytes()).hexdigest()


# serve


def _serve_function(module: ModuleType) -> Callable[[Any], Any]:
    serve = getattr(module, "serve", None)
    if serve is None:
        raise BadRequest("it has no `serve`: write `async def serve(request): ...`")
    if not inspect.iscoroutinefunction(serve) and not inspect.isasyncgenfunction(serve):
        raise BadRequest("its `serve` must be `async def`")
    arguments = list(inspect.signature(serve).parameters.values())
    if (
        not arguments
        or arguments[0].kind not in _POSITIONAL
        or any(each.default is each.empty for each in arguments[1:])
    ):
        raise BadRequest("its `serve` must take one argument, the request")
    return serve


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _serve_types(serve: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return the types that ``serve`` takes and returns. A missing annotation is ``Any``."""
    try:
        hints = typing.get_type_hints(serve, include_extras=True)
    except Exception as error:
        raise BadRequest(f"cannot read the annotations of its `serve` ({type(error).__name__}): {error}") from error
    first = next(iter(inspect.signature(serve).parameters))
    return hints.get(first, Any), hints.get("return", Any)


def _answer_type(serve: Callable[[Any], Any], annotation: Any) -> tuple[bool, Any]:
    """Return whether ``serve`` streams, and the type of its answer. For a stream, this is the type of a part."""
    origin = get_origin(annotation) or annotation
    if origin in _ITERATORS or origin is Stream:
        return True, next(iter(get_args(annotation)), Any)
    if inspect.isasyncgenfunction(serve):
        if annotation is not Any:
            raise BadRequest("its `serve` yields, so it must be annotated `-> AsyncIterator[...]`, or not at all")
        return True, Any
    return False, annotation


def _is_typed(answer: Any) -> bool:
    """Return whether to check the answer. Outputs of tasks were checked where they were made."""
    return answer is not Any and not (isinstance(answer, type) and issubclass(answer, TaskOutput | ChatOutput | Result))


def _untyped_schema(answer: Any) -> dict[str, Any]:
    """Return the schema of an answer that is sent unchecked."""
    return ChatAnswer.model_json_schema() if answer is ChatOutput else {}


def _type_adapter(kind: Any, role: str) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(kind)
    except PydanticUserError as error:
        raise BadRequest(
            f"the type of its {role}, {kind!r}, cannot be checked: use a pydantic model, a dataclass, or types of JSON "
            f"({str(error).splitlines()[0]})"
        ) from error


def _json_schema(adapter: TypeAdapter[Any], mode: typing.Literal["validation", "serialization"]) -> dict[str, Any]:
    try:
        return adapter.json_schema(mode=mode)
    except PydanticInvalidForJsonSchema:
        return {}
