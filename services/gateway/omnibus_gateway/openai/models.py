"""Responses of ``/v1/models`` in the ``openai`` client's format."""

from typing import Literal

from msgspec import Struct

PATH, MODEL = "/v1/models", "/v1/models/{model}"


class ModelObject(Struct, frozen=True, kw_only=True):
    """A served model. ``created`` is in Unix seconds; ``owned_by`` is ``omnibus`` or the app that provides it.

    The other fields are extras, null if unknown: modalities of requests and responses, voices, and a limit. That limit
    is for the tokens of prompt and answer together; it has two names because clients of other servers read either. The
    ``parent`` of an adapter is the model that it adapts. ``root`` is the model's id on the hub, or the name of its
    directory.
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
