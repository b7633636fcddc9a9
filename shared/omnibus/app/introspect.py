"""Description of an app from its module: its name, its tasks, and the types of ``serve``."""

import inspect
import re
import typing
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping
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
from omnibus.app.protocol import CHAT, JSON, Description
from omnibus.app.routes import ROUTES, AppRoute, ChatAnswer, route_modalities
from omnibus.app_record import AppModel, AppSource, TaskRecord
from omnibus.errors import BadRequest
from omnibus.task import ChatInput, ChatOutput, CompositeTask, Result, Stream, TaskOutput, UnitTask, tasks_of

#: Most characters of a module's documentation.
_MAX_DOC_CHARS = 4000

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_ITERATORS = (AsyncIterator, AsyncIterable, AsyncGenerator)
_MODALITIES = ("text", "image", "video", "audio")
_MAX_NAME_CHARS = 64


@dataclass(frozen=True)
class AppFunction:
    """Function of an app. ``response`` is the type of an answer or of its parts, None if untyped."""

    call: Callable[[Any], Any]
    request: TypeAdapter[Any]
    response: TypeAdapter[Any] | None = None
    streams: bool = False


@dataclass(frozen=True)
class LoadedApp:
    """App that can serve. ``functions`` are by kind of request: ``JSON``, and those of ``omnibus.app.routes``."""

    description: Description
    functions: Mapping[str, AppFunction]

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
        """Return the path of the file that defines its functions."""
        return str(next(iter(self.functions.values())).call.__code__.co_filename)


def load_app(source: AppSource, text: str = "", restrictions: tuple[str, ...] = ()) -> LoadedApp:
    """Load an app. Raises ``BadRequest`` with the name of the module and the problem."""
    module = load_module(source, text)
    try:
        return _describe_module(module, source, restrictions)
    except BadRequest as error:
        raise BadRequest(f"the module {module.__name__} is not an app: {error.message}", param=error.param) from error


def _describe_module(module: ModuleType, source: AppSource, restrictions: tuple[str, ...]) -> LoadedApp:
    app = _app_declaration(module)
    functions = _find_functions(module, app)
    serve = functions.get(JSON)
    chat = serve is not None and serve.request is _CHAT_REQUEST
    routes = tuple(kind for kind in functions if kind not in (JSON, CHAT))
    description = Description(
        name=app.name or module.__name__.rpartition(".")[2].lower(),
        doc=inspect.cleandoc(module.__doc__ or "")[:_MAX_DOC_CHARS],
        tasks=tuple(_task_record(task, source) for task in module_tasks(module)),
        route=CHAT if CHAT in functions else "",
        model=app.model,
        # The gateway defines the requests of clients.
        request=_json_schema(serve.request, "validation") if serve is not None and not chat else {},
        response=_response_schema(module.serve, serve) if serve is not None else {},
        streams=serve is not None and serve.streams,
        restricted=restrictions,
        chat=chat,
        routes=routes,
        about=_describe_model(app, tuple(kind for kind in functions if kind != JSON)),
        invocable=serve is not None,
    )
    _check_names(description)
    return LoadedApp(description, functions)


def _find_functions(module: ModuleType, app: App) -> dict[str, AppFunction]:
    """Return the functions of the app by kind of request."""
    functions: dict[str, AppFunction] = {}
    if hasattr(module, "serve"):
        functions[JSON] = _describe_serve(_async_function(module, "serve"))
    named = [kind for kind, route in ROUTES.items() if kind != CHAT and app.model and hasattr(module, route.function)]
    functions |= {kind: _route_function(module, ROUTES[kind]) for kind in named}
    if app.model and JSON in functions and _signature_types(module.serve) == (ChatInput, ChatOutput):
        functions[CHAT] = functions[JSON]
    if app.model and functions.keys() == {JSON}:
        raise BadRequest(f"with the model {app.model!r}, `serve` must be `{ROUTES[CHAT].signature}`")
    if not functions:
        raise BadRequest("it has no `serve`: write `async def serve(request): ...`")
    return functions


def _route_function(module: ModuleType, route: AppRoute) -> AppFunction:
    function = _async_function(module, route.function)
    if _signature_types(function) != (route.request, route.response):
        raise BadRequest(
            f"`{route.function}` of an app with a model must be `{route.signature}`: rename a function that serves no "
            "requests"
        )
    return AppFunction(function, TypeAdapter(route.request))


def _describe_model(app: App, routes: tuple[str, ...]) -> AppModel:
    """Return the facts of ``app``. Modalities that it does not declare are those of its routes, if these fix them."""
    unknown = [each for each in (*app.input_modalities, *app.output_modalities) if each not in _MODALITIES]
    if unknown:
        raise BadRequest(f"{unknown[0]!r:.80} is no modality: use {', '.join(_MODALITIES)}")
    if not all(isinstance(voice, str) and 0 < len(voice) <= _MAX_NAME_CHARS for voice in app.voices):
        raise BadRequest(f"the voices must be names of 1 to {_MAX_NAME_CHARS} characters")
    if isinstance(app.context_length, bool) or not isinstance(app.context_length, int) or app.context_length < 0:
        raise BadRequest("the context length must be a number of tokens")
    inputs, outputs = route_modalities(routes) if routes else ((), ())
    return AppModel(
        tuple(app.input_modalities) or inputs,
        tuple(app.output_modalities) or outputs,
        tuple(app.voices),
        app.context_length,
    )


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


def _async_function(module: ModuleType, name: str) -> Callable[[Any], Any]:
    """Return the function ``name``. Raises ``BadRequest`` unless it is async and takes one argument."""
    function = getattr(module, name)
    if not inspect.iscoroutinefunction(function) and not inspect.isasyncgenfunction(function):
        raise BadRequest(f"its `{name}` must be `async def`")
    arguments = list(inspect.signature(function).parameters.values())
    if (
        not arguments
        or arguments[0].kind not in _POSITIONAL
        or any(each.default is each.empty for each in arguments[1:])
    ):
        raise BadRequest(f"its `{name}` must take one argument, the request")
    return function


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_CHAT_REQUEST: TypeAdapter[Any] = TypeAdapter(ChatInput)


def _describe_serve(serve: Callable[[Any], Any]) -> AppFunction:
    request_type, return_type = _signature_types(serve)
    streams, answer = _answer_type(serve, return_type)
    request = _CHAT_REQUEST if request_type is ChatInput else _type_adapter(request_type, "request")
    return AppFunction(serve, request, _type_adapter(answer, "answer") if _is_typed(answer) else None, streams)


def _signature_types(function: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return the types that ``function`` takes and returns. A missing annotation is ``Any``."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        name = function.__name__
        raise BadRequest(f"cannot read the annotations of its `{name}` ({type(error).__name__}): {error}") from error
    first = next(iter(inspect.signature(function).parameters))
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


def _response_schema(serve: Callable[[Any], Any], function: AppFunction) -> dict[str, Any]:
    if function.response is not None:
        return _json_schema(function.response, "serialization")
    return ChatAnswer.model_json_schema() if _answer_type(serve, _signature_types(serve)[1])[1] is ChatOutput else {}


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
