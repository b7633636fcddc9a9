"""Bodies of the routes that load and unload adapters, as in vLLM."""

from typing import Annotated

from msgspec import Meta, Struct, json

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"

Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$")]


class LoadAdapterRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A request to load an adapter. ``lora_path`` must be inside the allowed directory.

    ``load_inplace`` replaces an adapter with this name. ``base_model_name`` is required if there are several models.
    """

    lora_name: Name
    lora_path: Annotated[str, Meta(min_length=1, max_length=4096)]
    load_inplace: bool = False
    base_model_name: str | None = None
    is_3d_lora_weight: bool = False


class UnloadAdapterRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A request to unload an adapter. ``lora_int_id`` is accepted and ignored."""

    lora_name: str
    lora_int_id: int | None = None


LOAD_DECODER = json.Decoder(LoadAdapterRequest)
UNLOAD_DECODER = json.Decoder(UnloadAdapterRequest)
