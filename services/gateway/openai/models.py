"""Answers of ``/v1/models``, as the ``openai`` client reads them."""

from typing import Literal

from msgspec import Struct

PATH, MODEL = "/v1/models", "/v1/models/{model}"


class ModelObject(Struct, frozen=True, kw_only=True):
    """A model that is served. ``created`` in Unix seconds; ``owned_by`` is ``omnibus``, or the app that brings it.

    The fields behind these are extras, null where they are not known: modalities of requests and answers, voices, and
    the most tokens of prompt and answer together, under the two names that clients of other servers read. The
    ``parent`` of an adapter is the model that it adapts; ``root`` is its id of the hub, or the name of its directory.
    """

    id: str
    created: int
    owned_by: str
    object: Literal["model"] = "model"
    root: str | None = None
    parent: str | None = None
    input_modalities: tuple[str, ...] | None = None
    output_modalities: tuple[str, ...] | None = None
    voices: tuple[str, ...] | None = None
    context_length: int | None = None
    max_model_len: int | None = None


class ModelList(Struct, frozen=True, kw_only=True):
    data: list[ModelObject]
    object: Literal["list"] = "list"
