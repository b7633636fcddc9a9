"""Blocks of a modular pipeline of diffusers, run in parts.

Each part has only the models that its blocks name.
"""

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.modular_pipelines.modular_pipeline import (
    MODULAR_PIPELINE_MAPPING,
    LoopSequentialPipelineBlocks,
    PipelineState,
)
from diffusers.pipelines.auto_pipeline import _get_model
from greenlet import getcurrent, greenlet
from torch import Tensor, nn
from transformers import PreTrainedModel

from omnibus import errors
from omnibus_models import diffusers_loading, loading
from omnibus_models.modular.values import pack_values, unpack_values

_DENOISE = "denoise"
#: Names in packed values: values by kind of argument, and the state of the generator.
_KINDS, _GENERATOR = "kinds of arguments", "generator"
#: Inputs that every part receives from its own request.
_OWN_INPUTS = frozenset({"output_type"})


def find_pipeline_class(index: Mapping[str, Any]) -> Any:
    """Return the modular class of the pipeline that ``index`` describes, or None if it has none.

    ``index`` is the content of model_index.json or modular_model_index.json.
    """
    name = str(index.get("_class_name", ""))
    if name.endswith("ModularPipeline"):
        return getattr(diffusers, name, None)
    find_name = MODULAR_PIPELINE_MAPPING.get(_get_model(name))
    modular_name = find_name(index) if find_name else f"{name.removesuffix('Pipeline')}ModularPipeline"
    return getattr(diffusers, modular_name, None)


def output_family(cls: Any) -> str:
    """Return the name of the family of pipelines of ``cls``, by its output."""
    return "modular_video" if "videos" in cls(blocks=None).blocks.output_names else "modular_image"


def open_pipeline(cls: Any, checkpoint: Path) -> Any:
    """Return a pipeline of ``cls`` without models, with the configuration of ``checkpoint``."""
    try:
        return cls(pretrained_model_name_or_path=str(checkpoint), local_files_only=True)
    except (ImportError, OSError, ValueError) as error:
        raise errors.Fatal(f"{checkpoint} is not a checkpoint of {cls.__name__}: {error}") from error


def split_blocks(blocks: Any) -> dict[str, list[str]]:
    """Return the names of ``blocks`` by component: text_encoder, vae_encoder, dit and vae.

    Blocks that read the prompt are the text encoder. The encoder of images has those that run only for an image, and
    may have none; those that run only for other inputs are in no component. Others before the decoder depend on the
    size of the output, and belong to the denoiser. Raises ``Fatal`` for blocks that do not read a prompt, then denoise
    and then decode.
    """
    names = list(blocks.sub_blocks)
    before = names[: names.index(_DENOISE)] if _DENOISE in names else []
    masked = {"image": True, **dict.fromkeys({"mask_image"} & {*blocks.input_names}, True)}
    running, drawn = (
        {name.split(".")[0] for name in blocks.get_execution_blocks(prompt=True, **image).sub_blocks}
        for image in ({}, masked)
    )
    kinds = {name: _block_component(blocks.sub_blocks[name], name in running) for name in before if name in drawn}
    parts = {
        part: [name for name in before if kinds.get(name) == part] for part in ("text_encoder", "vae_encoder", "dit")
    }
    after = names[len(before) + 1 :]
    if not parts["text_encoder"] or not after:
        raise errors.Fatal(f"{type(blocks).__name__} has the blocks {', '.join(names)}, which cannot be separated")
    return {**parts, "dit": [*parts["dit"], _DENOISE], "vae": after}


def _block_component(block: Any, runs: bool) -> str:
    """Return the component of a ``block`` before denoising, which ``runs`` for a prompt alone or not."""
    if "prompt" in block.input_names:
        return "text_encoder"
    reads_image = any("image" in str(name) or "video" in str(name) for name in block.required_inputs)
    return "dit" if runs and not reads_image else "vae_encoder"


class ModularPart:
    """Some blocks of a pipeline, with the models that they name and the configurations of the others.

    A block without a model takes sizes from its own constants, not from the model of the checkpoint. So ``pipeline``
    has the others too, without weights.
    """

    def __init__(self, pipeline: Any, checkpoint: Path, names: Sequence[str], device: str, dtype: str) -> None:
        self.pipeline = pipeline
        self.names = names
        self.device = device
        whole = pipeline.blocks
        self.inputs = {each.name: each for each in whole.inputs if each.name is not None}
        self._blocks = [whole.sub_blocks[name] for name in names]
        self.prompt_reads_image = any({"prompt", "image"} <= {*each.input_names} for each in whole.sub_blocks.values())
        followers = list(whole.sub_blocks)[list(whole.sub_blocks).index(names[-1]) + 1 :] if names else []
        later = [each for name in followers for each in whole.sub_blocks[name].inputs]
        self._later_names = {each.name for each in later if each.name is not None} - _OWN_INPUTS
        self._later_kinds = {each.kwargs_type for each in later if each.kwargs_type is not None}
        self._load_components(checkpoint, dtype)
        for loop in _find_loops([pipeline._blocks, *self._blocks]):
            loop.set_progress_bar_config(disable=True)
        for loop in _find_loops(self._blocks):
            loop.loop_step = functools.partial(_pause_before, loop.loop_step)

    @property
    def module(self) -> nn.ModuleDict:
        """The models with weights."""
        components = self.pipeline.components.items()
        return nn.ModuleDict({name: each for name, each in components if isinstance(each, nn.Module)})

    def _load_components(self, checkpoint: Path, dtype: str) -> None:
        own_names = {spec.name for block in self._blocks for spec in block.expected_components}
        for name, spec in [*self.pipeline._component_specs.items()]:
            if spec.default_creation_method != "from_pretrained" or not (checkpoint / name).is_dir():
                continue
            if name in own_names:
                setattr(self.pipeline, name, _load_component(spec.type_hint, checkpoint, name, self.device, dtype))
            elif issubclass(spec.type_hint, ModelMixin):
                setattr(self.pipeline, name, _load_outline(spec.type_hint, checkpoint, name))
                del self.pipeline._component_specs[name]  # it has no device

    def copy_pipeline(self) -> Any:
        """Return a pipeline with the same models, and schedules and guidance of its own."""
        own = copy.copy(self.pipeline)
        for name, component in self.pipeline.components.items():
            if isinstance(component, ConfigMixin) and not isinstance(component, nn.Module):
                setattr(own, name, copy.deepcopy(component))
        return own

    def open_state(self, values: Mapping[str, Any], packed: Sequence[Tensor] = ()) -> Any:
        """Return a state with the defaults of the whole pipeline and ``values``.

        The values of earlier parts are in it as well.
        """
        state = PipelineState()
        for name, each in self.inputs.items():
            state.set(name, each.default, each.kwargs_type)
        for name, value in values.items():
            if name in self.inputs:
                state.values[name] = value
        for each in packed:
            received = unpack_values(each, self.device)
            kinds = received.pop(_KINDS, {})
            generator_state = received.pop(_GENERATOR, None)
            state.values.update(received)
            for kind, names in kinds.items():
                state.kwargs_mapping.setdefault(kind, []).extend(names)
            if generator_state is not None and state.get(_GENERATOR) is not None:
                state.get(_GENERATOR).set_state(generator_state.cpu())
        return state

    def pack_state(self, state: Any, **more: Any) -> Tensor:
        """Return the values in ``state`` that later parts read, and ``more``, uint8 [1, n]."""
        kinds = {kind: names for kind, names in state.kwargs_mapping.items() if kind in self._later_kinds}
        names = self._later_names.union(*kinds.values()) - {_GENERATOR}
        values = {name: state.get(name) for name in sorted(names) if self._is_set(name, state.get(name))}
        return pack_values(
            {**values, **more, _KINDS: {kind: list(dict.fromkeys(each)) for kind, each in kinds.items()}}
        )

    def _is_set(self, name: str, value: Any) -> bool:
        return value is not None and not (name in self.inputs and value is self.inputs[name].default)

    def run_blocks(self, state: Any, pipeline: Any = None) -> Any:
        """Run the blocks on ``state``. Raises ``BadRequest`` with the library's message for values that it rejects."""
        pipeline = self.pipeline if pipeline is None else pipeline
        try:
            for block in self._blocks:
                _, state = block(pipeline, state)
        except ValueError as error:
            raise errors.BadRequest(f"the pipeline rejects this request: {error}") from error
        return state


class BlockRun(greenlet):
    """A run of the blocks of ``part``, which pauses before each step of a loop.

    ``steps`` is the number of steps of the loop, known after the first ``resume_loop``. Without a number, it is 1,
    and the step is the whole loop. It must be resumed in one thread.
    """

    def __init__(self, part: ModularPart, state: Any, pipeline: Any) -> None:
        super().__init__(self._run_part)
        self.state = state
        self.steps = 1
        self._part = part
        self._pipeline = pipeline

    def _run_part(self) -> None:
        self.state = self._part.run_blocks(self.state, self._pipeline)

    def resume_loop(self) -> bool:
        """Continue to the next pause. Returns True if there is one, and False at the end."""
        self.parent = getcurrent()
        self.switch()
        return not self.dead

    def pause_loop(self, timesteps: Any) -> None:
        """Return to the caller of ``resume_loop``, before a step of a loop over ``timesteps``."""
        if timesteps is not None:
            self.steps = len(timesteps)
            self.parent.switch()
        elif self.steps == 1:
            self.steps = 0  # once, before the first step
            self.parent.switch()
            self.steps = 1


def _pause_before(step: Callable[..., Any], pipeline: Any, state: Any, **place: Any) -> Any:
    current = getcurrent()
    if isinstance(current, BlockRun):
        current.pause_loop(getattr(state, "timesteps", None))
    return step(pipeline, state, **place)


def _find_loops(blocks: Sequence[Any]) -> Iterator[Any]:
    for block in blocks:
        if isinstance(block, LoopSequentialPipelineBlocks):
            yield block
        else:
            yield from _find_loops(list(block.sub_blocks.values()))


def _load_component(cls: Any, checkpoint: Path, name: str, device: str, dtype: str) -> Any:
    if issubclass(cls, ModelMixin):
        return diffusers_loading.load_model(cls, checkpoint, name, device=device, dtype=dtype)
    if issubclass(cls, PreTrainedModel):
        return loading.load_model(
            cls, checkpoint / name, device=device, dtype=dtype, attn_implementation=loading.find_attention(cls)
        )
    try:
        return cls.from_pretrained(checkpoint / name, local_files_only=True)
    except (ImportError, OSError, ValueError) as error:
        raise errors.Fatal(f"{cls.__name__} cannot be loaded from {checkpoint}/{name}: {error}") from error


def _load_outline(cls: Any, checkpoint: Path, name: str) -> Any:
    """Return the model ``name`` with its configuration and without weights."""
    with torch.device("meta"):
        return cls.from_config(cls.load_config(checkpoint, subfolder=name, local_files_only=True))
