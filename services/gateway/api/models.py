"""``/v1/models``: the models of the plan, and those that apps bring."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from omnibus.errors import NotFound
from services.gateway.apps.served_apps import Registry
from services.gateway.http.handlers import Handler, add_routes, json_response
from services.gateway.openai.models import PATH, ModelList, ModelObject
from services.gateway.routing.router import Router

_OWNED_BY = "omnibus"


class ModelRoutes:
    """Adds the routes over what ``router`` and ``registry`` know to an application."""

    def __init__(self, router: Router, registry: Registry | None) -> None:
        self._router = router
        self._registry = registry

    def add_routes(self, app: FastAPI) -> None:
        # The names of models may hold slashes, and clients may send them as they are.
        routes: dict[str, dict[str, Handler]] = {
            PATH: {"GET": self._list_models},
            f"{PATH}/{{model:path}}": {"GET": self._get_model},
        }
        add_routes(app, routes)

    async def _list_models(self, _: Request) -> Response:
        self._check_read()
        return json_response(ModelList(data=list(self._available_models().values())))

    async def _get_model(self, request: Request) -> Response:
        name = request.path_params["model"]
        found = self._available_models().get(name)
        if found is None:
            self._check_read()
            raise NotFound(
                f"The model '{name[:256]}' does not exist here: /v1/models lists those that do.", param="model"
            )
        return json_response(found)

    def _check_read(self) -> None:
        """Raise ``StageUnavailable`` while this gateway does not know yet what apps bring."""
        if self._registry is not None:
            self._registry.check_read()

    def _available_models(self) -> dict[str, ModelObject]:
        plan = self._router.plan
        at = int(plan.created) if plan is not None else 0
        models = plan.models.items() if plan is not None else ()
        known = {name: ModelObject(id=name, created=at, owned_by=_OWNED_BY) for name, each in models if not each.apps}
        for app in self._registry.model_records() if self._registry is not None else ():
            brought = ModelObject(id=app.model, created=int(app.created), owned_by=app.name)
            known.setdefault(app.model, brought)
        return known
