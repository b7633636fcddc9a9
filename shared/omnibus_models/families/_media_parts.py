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
from omnibus_models.contract import PrefillInputs
from omnibus_models.families._item_processor import MEDIUM, ItemProcessor, sample_items
from omnibus_models.families._own_encoder import OwnEncoder, find_inverted
from omnibus_models.families._own_prompt import OwnPrompts
from omnibus_models.families.causal_lm import OwnDecoder, OwnHead, find_backbone
from omnibus_models.miniature import SmallTokens, build_copy, shrink_parts

R = TypeVar("R")


class Parts(NamedTuple):
    """``encoders`` are the modules that only encoders use, ``language`` those that only the language model uses.

    ``faults`` say why further modalities cannot be encoded. ``attention`` is an implementation that all parts have.
    A model that is ``whole`` does not come apart. ``inverted`` are masks that encoders get inverted.
    """

    modalities: Sequence[str]
    encoders: Sequence[str]
    language: Sequence[str]
    faults: Mapping[str, str]
    attention: str
    whole: bool = False
    inverted: Sequence[str] = ()


def find_class(checkpoint: Path) -> tuple[Any, Any]:
    """Return the class of the model in ``checkpoint`` and its configuration. Raises ``NotFound``."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING

    config = AutoConfig.from_pretrained(checkpoint, local_files_only=True)
    try:
        classes = MODEL_FOR_MULTIMODAL_LM_MAPPING[type(config)]
    except KeyError:
        raise errors.NotFound(f"transformers has no multimodal model for {config.model_type!r}") from None
    return classes[0] if isinstance(classes, tuple) else classes, config


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
    """Yield the paths of modules and parameters of ``module`` none of which is ``used``.

    Modules are not cut up, except for those that contain a module of ``inside``.
    """
    for name, parameter in module._parameters.items():
        if parameter is not None and path + name not in used:
            yield path + name
    for name, child in module.named_children():
        names = {each for each, _ in child.named_parameters(prefix=path + name, remove_duplicate=False)}
        if names and not names & used:
            yield path + name
        elif any(part is not child and any(part is each for each in child.modules()) for part in inside):
            yield from unused_modules(child, used, inside, f"{path}{name}.")


@lru_cache(maxsize=4)
def load_parts(checkpoint: Path) -> Parts:
    """Return the parts of the model in ``checkpoint``. Raises ``Fatal`` if no copy of it comes apart."""
    cls, config = find_class(checkpoint)
    try:
        processor = ItemProcessor.load(checkpoint).with_tokens(SmallTokens(config))
        return split_copy(build_copy(cls, shrink_parts(config)), processor)
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
    encoder_used, thinker_used = set[str](), set[str]()
    faults: dict[str, str] = {}
    inverted = [name for modality in encoder.modalities for name in _find_inverted(module, processor, modality)]
    encoder = OwnEncoder(module, processor, inverted=inverted)
    for modality in sorted(encoder.modalities):
        try:
            item = processor.process_item(next(sample_items(modality)), modality)
            used_here, [encoded] = used_parameters(module, partial(encoder.encode, [item]))
            tokens, starts = processor.expand_prompt(processor.write_prompt(MEDIUM, modality), [encoded])
            no_media = torch.zeros(len(tokens), dtype=torch.bool)
            assemble = partial(prompts.assemble_prefill, tokens, starts, [encoded], no_media)
            used_there, _ = used_parameters(module, partial(_answer_prompt, decoder, assemble))
        except Exception as error:  # noqa: BLE001 whatever a library raises
            cause = error.__cause__ or error
            faults[modality] = f"{type(cause).__name__}: {cause}"
            continue
        encoder_used |= used_here
        thinker_used |= used_there
    if len(faults) == len(encoder.modalities):
        return _keep_whole(module, processor, str(faults))
    containers = [decoder.backbone]
    return Parts(
        sorted(encoder.modalities - faults.keys()),
        [*unused_modules(module, thinker_used, containers)],
        [*unused_modules(module, encoder_used, containers)],
        faults,
        module.config._attn_implementation,
        inverted=inverted,
    )


def _find_inverted(module: Any, processor: ItemProcessor, modality: str) -> list[str]:
    """See ``find_inverted``; for a prompt with one item of ``modality``."""
    try:
        inputs = processor.call_processor(
            processor.write_prompt(MEDIUM, modality), {modality: [next(sample_items(modality))]}
        )
    except Exception:  # noqa: BLE001 whatever a library raises: the modality is refused later
        return []
    inputs["input_ids"] = processor.model_tokens(inputs["input_ids"])
    names = inspect.signature(module.forward).parameters
    return find_inverted(module, modality, {name: value for name, value in inputs.items() if name in names})


def _keep_whole(module: Any, processor: ItemProcessor, reason: str) -> Parts:
    """Return the parts of a model that stays whole for a ``reason``.

    Raises ``Fatal`` if it is not for chats.
    """
    if module.config.is_encoder_decoder or not processor.placeholders:
        cause = "it has an encoder and a decoder" if processor.placeholders else "its processor has no placeholder"
        raise errors.Fatal(f"{type(module).__name__} does not come apart ({reason}), and is not for chats: {cause}")
    return Parts(sorted(processor.placeholders), (), (), {"": reason}, module.config._attn_implementation, True)


def _answer_prompt(decoder: OwnDecoder, assemble: Callable[[], PrefillInputs]) -> Tensor:
    """Return the logits [1, V] of the token after a prompt."""
    prefill = assemble()
    length = len(prefill.inputs)
    mask = None if prefill.attention is None else prefill.attention.mask(0, length)
    return decoder.logits(
        decoder.forward(prefill.inputs[None], prefill.positions[:, None], decoder.new_cache(), mask)[:, -1]
    )
