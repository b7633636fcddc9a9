"""Bodies of requests and responses of the app routes, as they are written and documented."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from omnibus.canary.gate import GateRules

#: Calls that are given to a new version at most.
MAX_CALLS = 1000
#: The schema of a chat request, as one app's own is shown.
CHAT_REQUEST = {"$ref": "/openapi.json#/components/schemas/AppChatRequest"}


class WorkerProblem(Struct, frozen=True):
    """Reason why a version does not serve at this gateway."""

    version: int
    code: str
    message: str


class WorkerView(Struct, frozen=True, omit_defaults=True):
    """The worker of an app at the gateway that answers. ``state`` is ``ready``, ``cold`` (the next call
    starts its process), ``starting``, ``restarting`` or ``broken``; ``version`` is the one that serves, null while none
    does."""

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


class AppCanaryRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Trial of a new version: on the ``last`` recorded calls, within so many seconds. ``tolerance`` and ``score``
    are those of ``omnibus.canary.gate.GateRules``."""

    last: Annotated[int, Meta(ge=1, le=MAX_CALLS)]
    tolerance: Annotated[float, Meta(ge=0)] = GateRules().tolerance
    score: Annotated[float, Meta(ge=0, le=1)] = GateRules().score
    within: Annotated[float, Meta(gt=0, le=3600)] = 200.0


class ComparedCall(Struct, frozen=True, omit_defaults=True):
    """One recorded call, and how the new version did: ``same``, ``differed``, ``failed``, or ``skipped`` where nothing
    can be said. ``stage`` is the component whose output differed first."""

    id: str
    outcome: str
    what: str = ""
    stage: str = ""


class AppCanaryView(Struct, frozen=True):
    """Result of a canary that let the new version take over."""

    compared: int
    calls: tuple[ComparedCall, ...]


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
    chat requests. ``canary``: what was compared before this version took over."""

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
    canary: AppCanaryView | UnsetType = UNSET


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
    """``source`` may be left out of an update: the app's own is loaded again. With ``canary`` a new version takes over
    only if it answers the last recorded calls as before."""

    source: AppSourceRequest | None = None
    canary: AppCanaryRequest | None = None
