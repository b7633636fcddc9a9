"""Encoders of a model of transformers, by its own ``get_*_features``."""

import inspect
import sys
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from omnibus import errors
from omnibus_models import media
from omnibus_models.contract import Encoded, LoadedComponent, Prepared
from omnibus_models.families import _media_rows
from omnibus_models.families._item_processor import ItemProcessor
from omnibus_models.families._media_rows import EncoderOutput

MODALITIES = ("image", "video", "audio")


class OwnEncoder(LoadedComponent):
    """The encoders of a model, see ``contract.MediaEncoder``. ``module`` has their modules.


    Items of the modalities ``batched`` are encoded in one pass. ``inverted`` are masks that the encoders get inverted.
    """

    def __init__(
        self,
        module: Any,
        processor: ItemProcessor,
        limits: media.MediaDecodeLimits = media.DEFAULT,
        batched: Sequence[str] = (),
        inverted: Collection[str] = (),
    ) -> None:
        super().__init__(module)
        self.inverted = inverted
        self._encoders = find_encoders(module)
        self.modalities = frozenset(self._encoders) & frozenset(processor.placeholders)
        self.processor = processor
        self._limits = limits
        self._batched = batched
        self.closer = processor.closer  # type: ignore[misc]

    def prepare(self, data: memoryview, modality: str, alone: bool = True) -> Prepared:
        """Decode and preprocess one file, see ``contract.MediaEncoder``."""
        if modality not in self.modalities:
            raise errors.BadRequest(f"this encoder takes {' and '.join(sorted(self.modalities))}, not {modality}")
        item = self.processor.decode_file(data, modality, self._limits)
        return self.processor.process_item(item, modality, alone or modality not in self.closer)

    @torch.no_grad()
    def encode(self, batch: Sequence[Prepared]) -> list[Encoded]:
        """Encode items, those that fit together in one pass."""
        groups: dict[Any, list[int]] = defaultdict(list)
        for place, item in enumerate(batch):
            shapes = (item.modality, item.meta.get("alone"), *sorted(item.features))
            groups[shapes if item.modality in self._batched else place].append(place)
        encoded: dict[int, Encoded] = {}
        for places in groups.values():
            encoded.update(zip(places, self._encode_group([batch[place] for place in places]), strict=True))
        return [encoded[place] for place in range(len(batch))]

    def _encode_group(self, items: Sequence[Prepared]) -> list[Encoded]:
        encode = self._encoders[items[0].modality]
        features = {name: self._join_features(name, items) for name in items[0].features}
        output = encode(**_match_arguments(encode, features), return_dict=True)
        sizes = [[len(item.features[name]) for item in items] for name in features]
        outputs = [output] if len(items) == 1 else _media_rows.split_output(output, sizes)
        marks_padding = not features.keys().isdisjoint(self.inverted)
        packed = [_media_rows.pack_output(each, marks_padding=marks_padding) for each in outputs]
        return [
            Encoded(each.rows, {**item.meta, "n_tokens": len(each.rows), "form": each.form})
            for item, each in zip(items, packed, strict=True)
        ]

    def _join_features(self, name: str, items: Sequence[Prepared]) -> Tensor:
        values = self._place(join_padded([item.features[name] for item in items]))
        return ~values if name in self.inverted else values

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


class _Projected:
    """The output of a projector, for a class without ``get_*_features``."""

    def __init__(self, module: Any, projector: nn.Module) -> None:
        self._module, self._projector = module, projector
        self.__signature__ = inspect.signature(module.forward)

    def __call__(self, return_dict: bool, **features: Tensor) -> EncoderOutput:
        rows: list[Any] = []

        def stop(_module: Any, _inputs: Any, output: Any) -> None:
            rows.append(output[0] if isinstance(output, tuple) else output)
            raise _Called

        handle = self._projector.register_forward_hook(stop)
        try:
            self._module(**features)
        except _Called:
            return EncoderOutput(pooler_output=rows[0])
        finally:
            handle.remove()
        raise errors.Fatal(f"{type(self._module).__name__} does not call its projector")


def _find_projector(module: Any) -> nn.Module | None:
    return next((child for name, child in module.named_children() if "project" in name), None)


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
        elif (method := _find_sibling(module, f"get_{modality}_features")) is not None:
            encoders[modality] = method
        elif modality in module.input_modalities and (projector := _find_projector(module)) is not None:
            encoders[modality] = _Projected(module, projector)
    if reads_frames(module) and "image" in encoders:
        encoders["video"] = encoders["image"]
    return encoders


def _find_sibling(module: Any, name: str) -> Any:
    """Return the method ``name`` of the class without a head (Kosmos 2)."""
    base = next(each for each in type(module).__mro__ if each.__module__.startswith("transformers."))
    sibling = getattr(sys.modules[base.__module__], f"{base.__name__.partition('For')[0]}Model", None)
    method = getattr(sibling, name, None)
    return None if method is None or module.base_model is not module else MethodType(method, module)


def reads_frames(module: Any) -> bool:
    """Return whether the model encodes frames of videos as images (InternVL)."""
    return not any(hasattr(owner, "get_video_features") for owner in list_owners(module))


def join_padded(tensors: Sequence[Tensor]) -> Tensor:
    """Return ``tensors`` joined along their first axis. The other axes are padded to the same sizes."""
    sizes = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors), strict=True)]
    return torch.cat([nn.functional.pad(tensor, _paddings(tensor, sizes)) for tensor in tensors])


def _paddings(tensor: Tensor, sizes: Sequence[int]) -> list[int]:
    """Return the argument of ``pad`` that gives ``tensor`` these ``sizes``.

    They are those of all axes but the first.
    """
    return [count for axis in range(len(sizes), 0, -1) for count in (0, sizes[axis - 1] - tensor.shape[axis])]


def _named_arguments(method: Any) -> list[str]:
    parameters = inspect.signature(method).parameters.values()
    return [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]


def list_owners(module: Any) -> list[Any]:
    """Return ``module`` and the models inside it that prepare prompts."""
    base = module.base_model
    return [owner for owner in (module, base, getattr(base, "model", None)) if owner is not None]
