"""Prompts with media as a model's own ``forward`` prepares them for its layers.

The model runs up to its decoder, with an encoder's rows instead of media. The arguments that the decoder would get are
the prompt: embeddings, positions, masks by kind of layer, and rows that single layers add.
"""

import copy
import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from omnibus import errors
from omnibus_models.attention import PromptArguments
from omnibus_models.contract import Encoded, PrefillInputs
from omnibus_models.families import _media_rows
from omnibus_models.families._item_processor import ItemProcessor, expand_runs
from omnibus_models.families._media_rows import MediaRows
from omnibus_models.families._own_encoder import MODALITIES, join_padded, list_owners, reads_frames
from omnibus_models.families.causal_lm import OwnDecoder, find_backbone, replace_part

#: Arguments of a decoder that are not properties of a prompt.
_NOT_OF_PROMPTS = frozenset(
    {"past_key_values", "cache", "cache_params", "use_cache", "cache_position", "return_dict", "labels"}
    | {"logits_to_keep", "output_attentions", "output_hidden_states", "output_router_logits"}
)


#: Rotary axes of images and videos: time, height and width.
_ROTARY_AXES = 3


class _Reached(Exception):
    """The decoder was called. Ends the forward pass."""


class _ArgumentRecorder(nn.Module):
    """In the place of ``decoder``: records the arguments of a call."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.__dict__["decoder"] = decoder  # not as a submodule
        self.names = [*inspect.signature(decoder.forward).parameters]
        self.arguments: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["decoder"], name)

    def forward(self, *values: Any, **named: Any) -> None:
        self.arguments = {**dict(zip(self.names, values, strict=False)), **named}
        raise _Reached


class PromptRecorder:
    """Calls ``module`` with tokens and rows of media, and returns the arguments of its decoder."""

    def __init__(self, module: Any) -> None:
        self.decoder = find_backbone(module)
        self._recorder = _ArgumentRecorder(self.decoder)
        self._model = replace_part(module, self.decoder, self._recorder)
        #: The arguments of the model.
        self.names = inspect.signature(module.forward).parameters
        #: Whether ``forward`` takes rows itself. BLIP-2 takes them and requires pixels as well.
        self._takes_rows = "mm_encoder_outputs" in self.names and not any(
            name.startswith("pixel_values") and parameter.default is parameter.empty
            for name, parameter in self.names.items()
        )

    @torch.no_grad()
    def __call__(self, ids: Tensor, by_token: Mapping[str, Tensor], media: Mapping[str, Any], inputs: Any) -> Any:
        """Return the decoder's arguments for ``ids`` [1, T].

        ``by_token`` are other values [1, T], ``media`` the joined outputs of encoders by modality, and ``inputs`` the
        small outputs of the processor. Raises ``Fatal`` if the model does not call its decoder.
        """
        model = copy.copy(self._model)
        call: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **inputs, **by_token}
        # No class takes rows of audio itself.
        taken = {name: rows for name, rows in media.items() if self._takes_rows and name != "audio"}
        if taken:
            call["mm_encoder_outputs"] = taken
        elif "image_embeds" in self.names and "image" in media:
            call["image_embeds"] = media["image"].pooler_output
        if others := {name: rows for name, rows in media.items() if name not in taken}:
            model, stand_ins = _with_rows(self._model, others, self.names)
            call |= stand_ins
        call = {name: value for name, value in call.items() if name in self.names}
        _forget_positions(model)
        try:
            model(**call)
        except _Reached:
            recorded = self._recorder.arguments
            self._recorder.arguments = {}
            return {
                name: value for name, value in recorded.items() if value is not None and name not in _NOT_OF_PROMPTS
            }
        raise errors.Fatal(
            f"{type(model).__name__} does not pass its prompts to its decoder; it cannot be served apart"
        )


def _forget_positions(module: Any) -> None:
    """Remove what the last prompt left on the model."""
    for owner in list_owners(module):
        if "rope_deltas" in vars(owner):
            owner.rope_deltas = None


def _with_rows(model: Any, media: Mapping[str, Any], names: Iterable[str]) -> tuple[Any, dict[str, Tensor]]:
    """Return ``model`` with encoders that return ``media``, and a stand-in for each medium."""
    changed = copy.copy(model)
    owners = [changed]
    name = next((name for name, child in model._modules.items() if child is model.base_model), "")
    if name:
        owners.append(copy.copy(model.base_model))
    for owner in owners:  # some look whether they have an encoder, which is removed here
        owner._modules = {name: nn.Module() if child is None else child for name, child in owner._modules.items()}
    if name:
        changed._modules[name] = owners[1]
    empty: dict[str, Tensor] = {}
    for modality, rows in media.items():
        for owner in owners:
            if hasattr(owner, f"get_{modality}_features"):
                owner.__dict__[f"get_{modality}_features"] = lambda *_, _rows=rows, **__: _rows
        argument = next((name for name in names if name in _MEDIA_ARGUMENTS[modality]), None)
        if argument is not None:
            empty[argument] = torch.full((1, 1), float("nan"))
    return changed, empty


_MEDIA_ARGUMENTS = {
    "image": ("pixel_values", "image_patches", "pixel_values_images"),
    "video": ("pixel_values_videos",),
    "audio": ("input_features", "input_values", "audio_values"),
}


class OwnPrompts:
    """Prompts of ``decoder``, the language model of a model with encoders, and of its ``processor``."""

    def __init__(self, decoder: OwnDecoder, processor: ItemProcessor) -> None:
        self._decoder = decoder
        self._processor = processor
        self._record = PromptRecorder(decoder.module)
        self._names: Collection[str] = self._record.names
        self._reads_frames = reads_frames(decoder.module)
        self._modalities = [each for each in MODALITIES if each != "video" or not self._reads_frames]
        self.device = decoder.device

    @torch.no_grad()
    def assemble_prefill(
        self, tokens: Sequence[int], starts: Sequence[int], media: Sequence[Encoded], is_media: Tensor
    ) -> PrefillInputs:
        """Return the inputs for expanded ``tokens`` [T] with ``media``, whose expansions begin at ``starts``."""
        ids = torch.tensor([tokens], device=self.device)
        by_token = self._values_by_token(tokens, starts, media) | self._find_kinds(ids)
        ids = self._processor.model_tokens(ids)
        by_place = [item for _, item in sorted(zip(starts, media, strict=True), key=lambda each: each[0])]
        taken = self._record(ids, by_token, *self._join_media(by_place))
        inputs = taken.pop("inputs_embeds", None)
        ids = taken.pop("input_ids", ids)
        inputs = self._decoder.embed(ids) if inputs is None else self._decoder.add_layer_rows(inputs, taken)
        first = _first_position(self._decoder.backbone)
        positions = _prompt_positions(taken.pop("position_ids", None), ids.shape[1], first).to(self.device)
        if isinstance(taken.get("attention_mask"), Tensor) and taken["attention_mask"].dim() == 2:
            del taken["attention_mask"]  # nothing is padded
        arguments = PromptArguments(ids.shape[1], taken) if taken else None
        # The first of four axes may count tokens, for masks of packed prompts.
        delta = int(positions[-_ROTARY_AXES:].max()) + 1 - ids.shape[1]
        return PrefillInputs(inputs[0], positions, delta, is_media.to(self.device), arguments)

    def _values_by_token(
        self, ids: Sequence[int], starts: Sequence[int], media: Sequence[Encoded]
    ) -> dict[str, Tensor]:
        """Return the values that the processor gives each token, [1, T]; text has 0."""
        values: dict[str, Tensor] = {}
        for start, item in zip(starts, media, strict=True):
            for name, runs in item.meta["expansion"].items():
                if name != "input_ids":
                    row = values.setdefault(name, torch.zeros(1, len(ids), dtype=torch.long, device=self.device))
                    own = torch.tensor(expand_runs(runs), device=self.device)
                    row[0, start : start + len(own)] = own
        return values

    def _find_kinds(self, ids: Tensor) -> dict[str, Tensor]:
        """Return the argument for the kinds of the tokens ``ids``, if the model takes it."""
        if "mm_token_type_ids" not in self._names:
            return {}
        kinds = self._processor.token_kinds(ids)  # of the whole prompt: marks around a medium may decide
        return {} if kinds is None else {"mm_token_type_ids": kinds.to(self.device)}

    def _join_media(self, media: Sequence[Encoded]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the joined outputs of encoders by modality.

        The second value contains the joined small outputs of the processor.
        """
        outputs: dict[str, Any] = {}
        inputs: dict[str, Any] = {}
        for modality in self._modalities:
            kinds = {modality, "video"} if modality == "image" and self._reads_frames else {modality}
            items = [item for item in media if item.meta["modality"] in kinds]
            if items:
                rows = [
                    MediaRows(item.embeds.to(self.device, self._decoder.dtype), item.meta["form"]) for item in items
                ]
                outputs[modality] = _media_rows.join_items(rows)
            for name in set.intersection(*({*item.meta["inputs"]} for item in items)) if items else ():
                inputs[name] = self._join_inputs(
                    [item.meta["inputs"][name] for item in items], [len(item.embeds) for item in items]
                )
        return outputs, inputs

    def _join_inputs(self, values: Sequence[Any], rows: Sequence[int]) -> Any:
        """Return a tensor of the ``values`` of items that have ``rows``, padded to the same shape.

        Texts become a list, and masks of rows follow each other like rows of different counts.
        """
        if any(isinstance(value, str) for value in values):
            return list(values)
        try:
            tensors = [_read_tensor(value) for value in values]
        except (TypeError, ValueError):
            return [part for value in values for part in value]
        if len({*rows}) > 1 and all(tensor.shape == (1, count) for tensor, count in zip(tensors, rows, strict=True)):
            return torch.cat(tensors, dim=1).to(self.device)
        return join_padded(tensors).to(self.device)


def _read_tensor(value: Any) -> Tensor:
    """Return a tensor of what ``ItemProcessor`` wrote into metadata."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        return torch.tensor(expand_runs(value["runs"])).reshape(value["shape"])
    tensor = torch.tensor(value)
    return tensor if tensor.dim() else tensor[None]


def _first_position(decoder: Any) -> int:
    """Return the first position that ``decoder`` counts itself (Kosmos 2)."""
    table: Any = getattr(decoder, "embed_positions", None)
    return int(table.padding_idx) + 1 if hasattr(table, "make_weights") else 0


def _prompt_positions(positions: Tensor | None, length: int, first: int) -> Tensor:
    """Return [axes, T] of what a decoder gets as ``position_ids``: [T], [1, T] or [axes, 1, T].

    Without these, positions begin at ``first``.
    """
    if positions is None:
        return torch.arange(first, first + length)[None]
    if positions.dim() < 3:
        return positions.reshape(1, -1)
    return positions[:, 0]
