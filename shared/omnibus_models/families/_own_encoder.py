"""Encoders of a model of transformers, by its own ``get_*_features``."""

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from omnibus import errors
from omnibus_models import media
from omnibus_models.contract import Encoded, LoadedComponent, Prepared
from omnibus_models.families import _media_rows
from omnibus_models.families._item_processor import ItemProcessor

MODALITIES = ("image", "video", "audio")


class OwnEncoder(LoadedComponent):
    """The encoders of a model, see ``contract.MediaEncoder``. ``module`` has their modules."""

    def __init__(
        self,
        module: Any,
        processor: ItemProcessor,
        limits: media.MediaDecodeLimits = media.DEFAULT,
        inverted: Collection[str] = (),
    ) -> None:
        super().__init__(module)
        self._inverted = inverted
        self._encoders = find_encoders(module)
        self.modalities = frozenset(self._encoders) & frozenset(processor.placeholders)
        self.processor = processor
        self._limits = limits

    def prepare(self, data: memoryview, modality: str, alone: bool = True) -> Prepared:
        """Decode and preprocess one file, see ``contract.MediaEncoder``."""
        if modality not in self.modalities:
            raise errors.BadRequest(f"this encoder takes {' and '.join(sorted(self.modalities))}, not {modality}")
        return self.processor.process_item(self.processor.decode_file(data, modality, self._limits), modality)

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Encode items one by one: processors of different models batch differently, and pad."""
        return [self._encode_item(item) for item in batch]

    def _encode_item(self, item: Prepared) -> Encoded:
        encode = self._encoders[item.modality]
        features = {
            name: ~self._place(value) if name in self._inverted else self._place(value)
            for name, value in item.features.items()
        }
        output = encode(**_match_arguments(encode, features), return_dict=True)
        packed = _media_rows.pack_output(output, marks_padding=not features.keys().isdisjoint(self._inverted))
        return Encoded(packed.rows, {**item.meta, "n_tokens": len(packed.rows), "form": packed.form})

    def _place(self, value: Tensor) -> Tensor:
        module: Any = self.module
        return value.to(module.device, module.dtype) if value.is_floating_point() else value.to(module.device)


def _match_arguments(encode: Any, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the ``features`` that ``encode`` takes, by the names of its arguments."""
    names = inspect.signature(encode).parameters
    chosen = {name: value for name, value in features.items() if name in names}
    required = [
        name for name, each in names.items() if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    if len(missing := [name for name in required if name not in chosen]) == 1:  # Fuyu's processor names it otherwise
        others = [value for name, value in features.items() if name not in chosen and value.is_floating_point()]
        chosen |= dict(zip(missing, others, strict=False))
    return chosen


class _Called(Exception):
    """An encoder was called. Ends the forward pass."""


def find_inverted(module: Any, modality: str, inputs: Mapping[str, Tensor]) -> list[str]:
    """Return the masks that ``module`` inverts for its encoder (Gemma 3n).

    They are names of the ``inputs`` of a prompt.
    """
    encode = find_encoders(module)[modality]
    calls: list[Mapping[str, Any]] = []

    def record(*values: Any, **named: Any) -> None:
        calls.append(inspect.signature(encode).bind(*values, **named).arguments)
        raise _Called

    owner = encode.__self__
    vars(owner)[encode.__name__] = record
    try:
        module.generate(**inputs, max_new_tokens=1)
    except _Called:
        return [name for name, value in calls[0].items() if _is_inverse(value, inputs.get(name))]
    except Exception:  # noqa: BLE001 a model that does not run whole is refused later
        return []
    finally:
        del vars(owner)[encode.__name__]
    return []


def _is_inverse(value: Any, given: Any) -> bool:
    masks = isinstance(value, Tensor) and isinstance(given, Tensor) and value.dtype == given.dtype == torch.bool
    return masks and value.shape == given.shape and bool((value != given).all())


def find_encoders(module: Any) -> dict[str, Any]:
    """Return the bound ``get_*_features`` of ``module`` or its inner model, by modality."""
    encoders: dict[str, Any] = {}
    for modality in MODALITIES:
        methods = [getattr(owner, f"get_{modality}_features", None) for owner in list_owners(module)]
        # Outer methods may only pass arguments on, and not all of them.
        named = [(len(_named_arguments(method)), -place, method) for place, method in enumerate(methods) if method]
        if named:
            encoders[modality] = max(named)[2]
    return encoders


def _named_arguments(method: Any) -> list[str]:
    parameters = inspect.signature(method).parameters.values()
    return [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]


def list_owners(module: Any) -> list[Any]:
    """Return ``module`` and the models inside it that prepare prompts."""
    base = module.base_model
    return [owner for owner in (module, base, getattr(base, "model", None)) if owner is not None]
