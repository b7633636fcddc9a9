"""Answers of ``/v1/models``, as the ``openai`` client reads them."""

from typing import Literal

from msgspec import Struct

PATH, MODEL = "/v1/models", "/v1/models/{model}"


class ModelObject(Struct, frozen=True, kw_only=True):
    """A model that is served. ``created`` in Unix seconds; ``owned_by`` is ``omnibus``, or the app that brings it."""

    id: str
    created: int
    owned_by: str
    object: Literal["model"] = "model"


class ModelList(Struct, frozen=True, kw_only=True):
    data: list[ModelObject]
    object: Literal["list"] = "list"
