"""The modules that each component of a model with encoders uses.

A run of a small random copy shows them.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from omnibus import errors
from omnibus_models.attention import PromptArguments
from omnibus_models.contract import PrefillInputs
from omnibus_models.families._item_processor import MEDIUM, ItemProcessor, sample_items
from omnibus_models.families._own_encoder import OwnEncoder, find_inverted
from omnibus_models.families._own_prompt import OwnPrompts
from omnibus_models.families.causal_lm import OwnDecoder, OwnHead, find_backbone
from omnibus_models.miniature import SmallTokens, build_copy, shrink_parts

R = TypeVar("R")

#: Arguments of decoders that follow from rows with columns for single layers.
_ROW_ARGUMENTS = {"visual_pos_masks", "deepstack_visual_embeds"}

#: Largest difference of rows, as a part of the largest value.
_ROUNDING = 1e-5


class Parts(NamedTuple):
    """Modules by the components that use them.

    ``encoders`` are those of encoders alone, ``language`` those of the language model alone. ``layers`` are those that
    the preparation of prompts does not use. ``portable`` are the modalities that layers of other engines take: a row
    for each placeholder, and causal attention. Items of ``batched`` modalities can be encoded in one pass. ``faults``
    say why further modalities cannot be encoded. ``attention`` is an implementation that all parts have. A model that
    is ``whole`` does not come apart. ``inverted`` are masks that encoders get inverted.
    """

    modalities: Sequence[str]
    encoders: Sequence[str]
    language: Sequence[str]
    layers: Sequence[str]
    portable: Sequence[str]
    batched: Sequence[str]
    faults: Mapping[str, str]
    attention: str
    whole: bool = False
    inverted: Sequence[str] = ()


def find_class(checkpoint: Path) -> tuple[Any, Any]:
    """Return the class of the model in ``checkpoint`` and its configuration. Raises ``NotFound``."""
    from transformers import AutoConfig

    return choose_class(AutoConfig.from_pretrained(checkpoint, local_files_only=True))


def choose_class(config: Any) -> tuple[Any, Any]:
    """Return the class for ``config`` and its own configuration. Raises ``NotFound``.

    Of a model that also speaks, they are those of the part that answers with text.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING

    for part in (getattr(config, "thinker_config", None), config):
        classes = None if part is None else MODEL_FOR_MULTIMODAL_LM_MAPPING.get(type(part), None)
        if classes is not None:
            return classes[0] if isinstance(classes, tuple) else classes, part
    raise errors.NotFound(f"transformers has no multimodal model for {config.model_type!r}")


class _UsedParameters(TorchFunctionMode):
    """Records the parameters that functions of torch get."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in ("__get__", "__set__"):
            self._record([*args, *(kwargs or {}).values()])
        return func(*args, **(kwargs or {}))

    def _record(self, values: Sequence[Any]) -> None:
        for value in values:
            if isinstance(value, nn.Parameter):
                self.ids.add(id(value))
            elif isinstance(value, list | tuple):
                self._record(value)


def used_parameters(module: nn.Module, function: Callable[[], R]) -> tuple[set[str], R]:
    """Call ``function``; return the parameters of ``module`` that it uses, and its result.

    Parameters are given by their names.
    """
    with _UsedParameters() as used:
        result = function()
    named = module.named_parameters(remove_duplicate=False)
    return {name for name, parameter in named if id(parameter) in used.ids}, result


def unused_modules(module: nn.Module, used: set[str], inside: Sequence[nn.Module], path: str = "") -> Iterator[str]:
    """Yield the paths of modules of ``module`` without ``used`` parameters.

    Modules are not cut up, except for those that contain a module of ``inside``. Single parameters stay, because the
    library's initialisation of weights reads them.
    """
    for name, child in module.named_children():
        names = {each for each, _ in child.named_parameters(prefix=path + name, remove_duplicate=False)}
        if names and not names & used:
            yield path + name
        elif any(part is not child and any(part is each for each in child.modules()) for part in inside):
            yield from unused_modules(child, used, inside, f"{path}{name}.")


def copy_model(cls: Any, config: Any) -> Any:
    """Return a small copy of the model ``cls`` with ``config``.

    Raises ``Fatal`` for an encoder and a decoder of text, and what libraries raise.
    """
    if config.is_encoder_decoder:
        raise errors.Fatal(f"{cls.__name__} is not for chats: it has an encoder and a decoder of text")
    return build_copy(cls, shrink_parts(config))


@lru_cache(maxsize=4)
def load_parts(checkpoint: Path) -> Parts:
    """Return the parts of the model in ``checkpoint``. Raises ``Fatal`` if no copy of it comes apart."""
    cls, config = find_class(checkpoint)
    try:
        processor = ItemProcessor.load(checkpoint).with_tokens(SmallTokens(config))
        return split_copy(copy_model(cls, config), processor)
    except errors.OmnibusError:
        raise
    except Exception as error:
        raise errors.Fatal(f"{cls.__name__} cannot be served in parts: {type(error).__name__}: {error}") from error


def split_copy(module: Any, processor: ItemProcessor) -> Parts:
    """Return the parts of ``module``, whose encoders and language model run once."""
    encoder = OwnEncoder(module, processor)
    if not encoder.modalities:
        return _keep_whole(module, processor, "it has no encoder whose rows a processor places in a prompt")
    decoder = OwnDecoder(module, find_backbone(module), OwnHead(module, by_ids=True), ())
    prompts = OwnPrompts(decoder, processor)
    encoder_used, prompts_used, layers_used = set[str](), set[str](), set[str]()
    faults: dict[str, str] = {}
    inverted = [name for modality in encoder.modalities for name in _find_inverted(module, processor, modality)]
    encoder = OwnEncoder(module, processor, inverted=inverted)
    portable: list[str] = []
    for modality in sorted(encoder.modalities):
        try:
            item = processor.process_item(next(sample_items(modality)), modality)
            used_here, [encoded] = used_parameters(module, partial(encoder.encode, [item]))
            tokens, starts = processor.expand_prompt(processor.write_prompt(MEDIUM, modality), [encoded])
            no_media = torch.zeros(len(tokens), dtype=torch.bool)
            assemble = partial(prompts.assemble_prefill, tokens, starts, [encoded], no_media)
            used_before, prefill = used_parameters(module, assemble)
            used_after, _ = used_parameters(module, partial(_answer_prompt, decoder, prefill))
        except Exception as error:  # noqa: BLE001 whatever a library raises
            cause = error.__cause__ or error
            faults[modality] = f"{type(cause).__name__}: {cause}"
            continue
        encoder_used |= used_here
        prompts_used |= used_before
        layers_used |= used_after
        extras = {*prefill.attention.options} if isinstance(prefill.attention, PromptArguments) else set()
        if processor.find_row_token(modality, encoded) is not None and extras <= _ROW_ARGUMENTS:
            portable.append(modality)
    if len(faults) == len(encoder.modalities):
        return _keep_whole(module, processor, str(faults))
    inside = f"{next(name for name, part in module.named_modules() if part is decoder.backbone)}."
    shares = any(name.startswith(inside) for name in encoder_used)  # such as the table of tokens (Chameleon)
    containers = [*decoder.backbone.children()] if shares else [decoder.backbone]
    return Parts(
        sorted(encoder.modalities - faults.keys()),
        [*unused_modules(module, prompts_used | layers_used, containers)],
        [*unused_modules(module, encoder_used, containers)],
        [*unused_modules(module, prompts_used, [*decoder.backbone.children()])],
        portable,
        [modality for modality in sorted(encoder.modalities - faults.keys()) if _is_batched(encoder, modality)],
        faults,
        module.config._attn_implementation,
        inverted=inverted,
    )


def _find_inverted(module: Any, processor: ItemProcessor, modality: str) -> list[str]:
    """See ``find_inverted``; for a prompt with one item of ``modality``."""
    try:
        return find_inverted(module, modality, _prompt_inputs(module, processor, modality))
    except Exception:  # noqa: BLE001 whatever a library raises: the modality is refused later
        return []


def _prompt_inputs(module: Any, processor: ItemProcessor, modality: str) -> dict[str, Any]:
    """Return the arguments of ``module`` for a prompt with one item of ``modality``."""
    text, item = processor.write_prompt(MEDIUM, modality), next(sample_items(modality))
    inputs = processor.call_processor(text, {modality: [item]})
    inputs["input_ids"] = processor.model_tokens(inputs["input_ids"])
    names = inspect.signature(module.forward).parameters
    return {name: value for name, value in inputs.items() if name in names}


def _keep_whole(module: Any, processor: ItemProcessor, reason: str) -> Parts:
    """Return the parts of a model that stays whole for a ``reason``.

    Raises ``Fatal`` if it is not for chats, or does not run.
    """
    if not processor.placeholders:
        raise errors.Fatal(
            f"{type(module).__name__} does not come apart ({reason}), and is not for chats: "
            "its processor has no placeholder"
        )
    faults = {each: _find_whole_fault(module, processor, each) for each in sorted(processor.placeholders)}
    if all(faults.values()):
        raise errors.Fatal(f"{type(module).__name__} does not come apart ({reason}), nor does it run whole: {faults}")
    attention = module.config._attn_implementation
    return Parts([each for each in faults if not faults[each]], (), (), (), (), (), {"": reason}, attention, whole=True)


def _find_whole_fault(module: Any, processor: ItemProcessor, modality: str) -> str:
    """Return why a whole model does not answer a prompt with one item of ``modality``, or ""."""
    try:
        module.generate(**_prompt_inputs(module, processor, modality), max_new_tokens=1)
    except Exception as error:  # noqa: BLE001 whatever a library raises
        return f"{type(error).__name__}: {error}"
    return ""


def _is_batched(encoder: OwnEncoder, modality: str) -> bool:
    """Return whether one pass encodes several items of ``modality`` correctly."""
    batching = OwnEncoder(encoder.module, encoder.processor, batched=[modality], inverted=encoder.inverted)
    items = [encoder.processor.process_item(item, modality) for item in sample_items(modality)]
    alone = encoder.encode(items)
    try:
        together = batching.encode(items)
    except Exception:  # noqa: BLE001 whatever a library raises
        return False
    return all(
        one.meta == other.meta
        and torch.allclose(one.embeds, other.embeds, rtol=0, atol=_ROUNDING * float(one.embeds.abs().max()))
        for one, other in zip(alone, together, strict=True)
    )


def _answer_prompt(decoder: OwnDecoder, prefill: PrefillInputs) -> Tensor:
    """Return the logits [1, V] of the token after a prompt."""
    length = len(prefill.inputs)
    mask = None if prefill.attention is None else prefill.attention.mask(0, length)
    return decoder.logits(
        decoder.forward(prefill.inputs[None], prefill.positions[:, None], decoder.new_cache(), mask)[:, -1]
    )
