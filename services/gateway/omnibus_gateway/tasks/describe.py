"""Facts about a model for clients: inputs, outputs, voices, context."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from omnibus.checkpoints.gguf_header import is_gguf, read_gguf_header
from omnibus.checkpoints.hub import resolve_checkpoint
from omnibus.errors import OmnibusError
from omnibus.families import catalog
from omnibus.plan import ModelPlan, Plan
from omnibus.task import CompositeTask
from omnibus_gateway.tasks import resolve

#: Maximum bytes of a checkpoint's configuration.
_MAX_CONFIG_BYTES = 1 << 20
#: Keys under which multimodal checkpoints have the configuration of their language model.
_LANGUAGE_CONFIGS = ("thinker_config", "text_config", "llm_config", "language_config")


class ModelFacts(NamedTuple):
    """Facts about a model. ``context`` is the maximum of prompt and answer tokens, None if unknown."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    voices: tuple[str, ...]
    context: int | None


def describe_model(name: str, plan: Plan) -> ModelFacts:
    """Describe model ``name`` of ``plan``. May read a small file, so call it in a thread."""
    model = plan.models[name]
    chats = _makes(resolve.create_chat_task, name, plan) is not None
    painter = _makes(resolve.create_image_task, name, plan)
    films = _makes(resolve.create_video_task, name, plan) is not None
    embeds = _makes(resolve.create_embedding_task, name, plan) is not None
    ranks = _makes(resolve.create_reranking_task, name, plan) is not None
    recognizes = _makes(resolve.create_recognition_task, name, plan) is not None
    speaks = _makes(resolve.create_speech_task, name, plan) is not None
    inputs = {*([] if recognizes else ["text"]), *model.encoders} | (
        {"image"} if painter and resolve.max_reference_images(painter) else set()
    )
    outputs = {
        "text": chats,
        "audio": (chats and model.has_talker) or speaks,
        "image": painter is not None,
        "video": films,
        "embedding": embeds,
        "score": ranks,
        "transcript": recognizes,
    }
    context = (model.context or _checkpoint_context(model)) if chats or embeds or ranks else None
    return ModelFacts(_in_order(inputs), tuple(kind for kind, does in outputs.items() if does), model.voices, context)


def _makes(create: Any, name: str, plan: Plan) -> CompositeTask | None:
    try:
        task: CompositeTask = create(name, plan)
    except OmnibusError:
        return None
    return task


def _in_order(kinds: set[str]) -> tuple[str, ...]:
    return tuple(kind for kind in ("text", "image", "audio", "video") if kind in kinds)


def _checkpoint_context(model: ModelPlan) -> int | None:
    """Read the context length of the checkpoint, if this machine has it."""
    if model.family == catalog.PYTHON or not model.checkpoint:
        return None
    with suppress(OmnibusError, OSError, ValueError):
        checkpoint = Path(resolve_checkpoint(model.checkpoint))
        if is_gguf(checkpoint):
            context_length = read_gguf_header(checkpoint).field("context_length")
            return context_length if isinstance(context_length, int) else None
        path = checkpoint / "config.json"
        if path.stat().st_size <= _MAX_CONFIG_BYTES:
            return _find_context(json.loads(path.read_bytes()))
    return None


def _find_context(config: Any) -> int | None:
    while isinstance(config, dict):
        context_length = config.get("max_position_embeddings")
        if isinstance(context_length, int):
            return context_length
        config = next((config[name] for name in _LANGUAGE_CONFIGS if name in config), None)
    return None
