"""``/v1/models``: the models of the plan, and those of apps."""

import asyncio
from pathlib import Path

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from omnibus.app_record import AppRecord
from omnibus.checkpoints import is_id
from omnibus.errors import NotFound
from omnibus.plan import Plan
from omnibus_gateway.apps.served_apps import Registry
from omnibus_gateway.http.handlers import Handler, add_routes, json_response
from omnibus_gateway.openai.models import PATH, ModelList, ModelObject
from omnibus_gateway.routing.router import Router
from omnibus_gateway.tasks.describe import describe_model

_OWNED_BY = "omnibus"


class ModelRoutes:
    """Adds the routes for models of ``router`` and ``registry``."""

    def __init__(self, router: Router, registry: Registry | None) -> None:
        self._router = router
        self._registry = registry
        self._described: tuple[Plan | None, dict[str, ModelObject]] = (None, {})

    def add_routes(self, app: FastAPI) -> None:
        # Names of models may contain slashes, and clients may send them unescaped.
        routes: dict[str, dict[str, Handler]] = {
            PATH: {"GET": self._list_models},
            f"{PATH}/{{model:path}}": {"GET": self._get_model},
        }
        add_routes(app, routes)

    async def _list_models(self, _: Request) -> Response:
        self._check_read()
        return json_response(ModelList(data=list((await self._available_models()).values())))

    async def _get_model(self, request: Request) -> Response:
        name = request.path_params["model"]
        model = (await self._available_models()).get(name)
        if model is None:
            self._check_read()
            raise NotFound(
                f"The model '{name[:256]}' does not exist here: /v1/models lists those that do.", param="model"
            )
        return json_response(model)

    def _check_read(self) -> None:
        """Raise ``StageUnavailable`` until this gateway has read the apps."""
        if self._registry is not None:
            self._registry.check_read()

    async def _available_models(self) -> dict[str, ModelObject]:
        model_objects = dict(await self._planned_models())
        for name, adapter in self._router.loaded_adapters.items():
            root = Path(adapter.path).name or name
            more = {"id": name, "root": root, "parent": adapter.model, "created": int(adapter.created)}
            if (base := model_objects.get(adapter.model)) is not None:
                model_objects[name] = msgspec.structs.replace(base, **more)
        for app in self._registry.model_records() if self._registry is not None else ():
            app_model = _describe_app(app)
            model_objects.setdefault(app.model, app_model)
        return model_objects

    async def _planned_models(self) -> dict[str, ModelObject]:
        """Return the operator's models, described once per plan."""
        plan = self._router.plan
        if plan is not self._described[0]:
            self._described = plan, await asyncio.to_thread(_describe_models, plan) if plan is not None else {}
        return self._described[1]


def _describe_models(plan: Plan) -> dict[str, ModelObject]:
    model_objects = {}
    for name, model in plan.models.items():
        if model.apps:
            continue
        model_objects[name] = base = _describe_model(name, plan)
        for adapter, checkpoint in model.adapters.items():
            root = checkpoint if is_id(checkpoint) else Path(checkpoint).name  # do not expose paths of machines
            model_objects[adapter] = msgspec.structs.replace(base, id=adapter, root=root, parent=name)
    return model_objects


def _describe_app(app: AppRecord) -> ModelObject:
    about = app.about
    return ModelObject(
        id=app.model,
        created=int(app.created),
        owned_by=app.name,
        input_modalities=about.input_modalities or None,
        output_modalities=about.output_modalities or None,
        voices=about.voices or None,
        context_length=about.context_length or None,
        max_model_len=about.context_length or None,
    )


def _describe_model(name: str, plan: Plan) -> ModelObject:
    facts = describe_model(name, plan)
    return ModelObject(
        id=name,
        created=int(plan.created),
        owned_by=_OWNED_BY,
        input_modalities=facts.inputs,
        output_modalities=facts.outputs,
        voices=facts.voices,
        context_length=facts.context,
        max_model_len=facts.context,
    )
