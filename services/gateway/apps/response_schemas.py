"""Bodies of requests and responses of the app routes, as they are written and documented."""

from typing import Any

from msgspec import Struct

#: The schema of a chat request, as one app's own is shown.
CHAT_REQUEST = {"$ref": "/openapi.json#/components/schemas/AppChatRequest"}


class WorkerProblem(Struct, frozen=True):
    """Reason why a version does not serve at this gateway."""

    version: int
    code: str
    message: str


class WorkerView(Struct, frozen=True, omit_defaults=True):
    """The worker of an app at the gateway that answers. ``state`` is ``ready``, ``starting``, ``restarting`` or
    ``broken``; ``version`` is the one that serves, null while none does."""

    state: str
    version: int | None
    problem: WorkerProblem | None = None


class TaskOfApp(Struct, frozen=True):
    """A unit task of an app; ``own`` ones bring their engine."""

    name: str
    kind: str
    model: str
    component: str
    own: bool


class SourceView(Struct, frozen=True, omit_defaults=True):
    """Source of an app's code: ``import``, ``directory`` or ``upload``."""

    kind: str
    module: str
    directory: str = ""
    sha256: str = ""


class AppView(Struct, frozen=True, kw_only=True):
    """A registered app. ``route`` is ``chat`` for one that answers chat completions as ``model``."""

    object: str = "app"
    name: str
    version: int
    state: str
    route: str
    model: str
    streams: bool
    tasks: tuple[str, ...]
    worker: WorkerView | None


class AppDetail(Struct, frozen=True, kw_only=True):
    """All about a registered app. ``request`` and ``response`` are JSON schemas, empty when untyped. ``chat``: it takes
    chat requests."""

    object: str = "app"
    name: str
    version: int
    state: str
    route: str
    model: str
    streams: bool
    chat: bool
    doc: str
    source: SourceView
    tasks: tuple[TaskOfApp, ...]
    request: dict[str, Any]
    response: dict[str, Any]
    created: float
    updated: float
    worker: WorkerView | None


class AppDeleted(Struct, frozen=True, kw_only=True):
    """``version`` is null for an app that another build had registered."""

    object: str = "app.deleted"
    name: str
    version: int | None
    deleted: bool = True


class ExecutorView(Struct, frozen=True):
    """``state`` is ``ok``, ``stuck``, ``silent`` or ``draining``."""

    id: str
    model: str
    option: str
    state: str


class TaskView(Struct, frozen=True):
    """A unit task of the plan or of an app. ``models`` run it, ``users`` are apps, and ``chat`` for plain models."""

    name: str
    kind: str
    own: bool
    model: str
    component: str
    models: tuple[str, ...]
    users: tuple[str, ...]
    executors: tuple[ExecutorView, ...]


class AppList(Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: tuple[AppView, ...]


class TaskList(Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: tuple[TaskView, ...]


class AppSourceRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """An installed module; a module in a directory below the gateway's apps; or a text and its name."""

    module: str | None = None
    directory: str | None = None
    upload: str | None = None
    name: str | None = None


class AppRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """``source`` may be left out of an update: the app's own is loaded again."""

    source: AppSourceRequest | None = None
