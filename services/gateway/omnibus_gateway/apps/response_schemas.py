"""Request and response bodies of the app routes."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from omnibus.app_record import AppModel
from omnibus.canary.candidate import GateRules

#: Maximum number of calls for a canary.
MAX_CALLS = 1000
#: Schema of a chat request, in place of an app's own.
CHAT_REQUEST = {"$ref": "/openapi.json#/components/schemas/AppChatRequest"}


class WorkerProblem(Struct, frozen=True):
    """Reason why a version is not served at this gateway."""

    version: int
    code: str
    message: str


class WorkerView(Struct, frozen=True, omit_defaults=True):
    """Worker of an app at the gateway that answers.

    ``state`` is ``ready``, ``cold`` (the next call starts its process), ``starting``, ``restarting`` or ``broken``.
    ``version`` is the version that it serves, null if there is none.
    """

    state: str
    version: int | None
    problem: WorkerProblem | None = None


class TaskOfApp(Struct, frozen=True):
    """Unit task of an app; an ``own`` task has its own engine."""

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
    """Canary of a new version: compares the ``last`` recorded calls, at most for ``within`` seconds.

    ``tolerance`` and ``score`` are those of ``omnibus.canary.candidate.GateRules``.
    """

    last: Annotated[int, Meta(ge=1, le=MAX_CALLS)]
    tolerance: Annotated[float, Meta(ge=0)] = GateRules().tolerance
    score: Annotated[float, Meta(ge=0, le=1)] = GateRules().score
    within: Annotated[float, Meta(gt=0, le=3600)] = 200.0


class ComparedCall(Struct, frozen=True, omit_defaults=True):
    """Recorded call and its ``outcome``: ``same``, ``differed``, ``failed``, or ``skipped`` without a comparison.

    ``stage`` is the first component whose output differed.
    """

    id: str
    outcome: str
    what: str = ""
    stage: str = ""


class AppCanaryView(Struct, frozen=True):
    """Result of a canary that passed."""

    compared: int
    calls: tuple[ComparedCall, ...]


class AppView(Struct, frozen=True, kw_only=True):
    """Registered app. ``route`` is ``chat`` if it answers chat completions as ``model``."""

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
    """Details of a registered app.

    ``request`` and ``response`` are JSON schemas, empty without types. ``chat`` is true if it accepts chat requests.
    ``routes`` are those on which it answers as ``model``, which ``about`` describes. Its own route answers if it is
    ``invocable``.
    ``canary`` is the comparison before this version took over.
    """

    object: str = "app"
    name: str
    version: int
    state: str
    route: str
    model: str
    streams: bool
    chat: bool
    routes: tuple[str, ...]
    about: AppModel
    invocable: bool
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
    """Removed app. ``version`` is null if another build had registered it."""

    object: str = "app.deleted"
    name: str
    version: int | None
    deleted: bool = True


class ExecutorView(Struct, frozen=True):
    """Executor of a unit task. ``state`` is ``ok``, ``stuck``, ``silent`` or ``draining``."""

    id: str
    model: str
    option: str
    state: str


class TaskView(Struct, frozen=True):
    """Unit task of the plan or of an app: ``models`` run it, ``users`` are apps, or ``chat``."""

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
    """Source of an app: an installed module, a module in a directory, or an upload.

    A ``directory`` is below the apps' directory of the gateway. An upload is a text and its ``name``.
    """

    module: str | None = None
    directory: str | None = None
    upload: str | None = None
    name: str | None = None


class AppRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Registration or update of an app.

    An update without ``source`` reloads the app's own. With ``canary``, a new version takes over only if it answers
    the last recorded calls as before.
    """

    source: AppSourceRequest | None = None
    canary: AppCanaryRequest | None = None
