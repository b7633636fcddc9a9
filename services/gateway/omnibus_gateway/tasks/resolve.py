"""Composite tasks of the models of the plan: chat, images, videos, embeddings, reranking, transcripts and speech.

Clients get facts about a model from here: inputs, outputs, voices and context.
"""

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ValidationError

from omnibus.checkpoints.gguf_header import is_gguf, read_gguf_header
from omnibus.checkpoints.hub import resolve_checkpoint
from omnibus.errors import BadMedia, BadRequest, OmnibusError, Rejected
from omnibus.families import catalog, plugins
from omnibus.families.image_tokens import CROSS_ATTENTION
from omnibus.plan import ModelPlan, Plan
from omnibus.task import MLLM, ChatInput, CompositeTask, Encode, Omni, Talk, Think, UnitTask, Vocode
from omnibus.task.library import (
    PAINTERS,
    Decode,
    ImageTextEmbedding,
    Prefill,
    PrefillDecode,
    SpeechRecognition,
    TextEmbedding,
    TextReranking,
    TextToSpeech,
    VideoGeneration,
)

Task = TypeVar("Task", bound=UnitTask)

#: Request fields of an image task, and the field for one reference image or for several.
_IMAGE_FIELDS, IMAGE, IMAGES = frozenset({"prompt", "width", "height"}), "image", "images"
#: Further request fields of a video task.
_VIDEO_FIELDS = frozenset({"seconds", "fps", "seed"})
#: Maximum number of reference images.
MAX_IMAGES = 16


def create_chat_task(name: str, plan: Plan) -> CompositeTask:
    """Create the chat task of model ``name``: its family's own, or the library's for its components.

    Raises ``BadRequest`` for a model without chat, and for a plugin that cannot be loaded.
    """
    model = plan.models[name]
    family_task = _family_task(name, model)
    if family_task is not None and not makes_images(family_task) and not makes_videos(family_task):
        return family_task
    owners = plan.task_owners()
    thinker: Think | PrefillDecode
    if {"prefill", "decode"} <= {*model.components}:
        thinker = PrefillDecode(
            prefill=_bind_task(Prefill, name, "prefill", model, owners),
            decode=_bind_task(Decode, name, "decode", model, owners),
        )
    elif "thinker" in model.components:
        thinker = _bind_task(Think, name, "thinker", model, owners)
    else:
        raise BadRequest(f"{name} is not a chat model: its components are {', '.join(model.components)}", param="model")
    encoders = {
        modality: _bind_task(Encode, name, component, model, owners) for modality, component in model.encoders.items()
    }
    if not model.has_talker:
        return MLLM(encoders=encoders, thinker=thinker, attends_across=model.family in CROSS_ATTENTION)
    return Omni(
        encoders=encoders,
        thinker=thinker,
        talker=_bind_task(Talk, name, "talker", model, owners),
        vocoder=_bind_task(Vocode, name, "vocoder", model, owners),
    )


def create_image_task(name: str, plan: Plan) -> CompositeTask:
    """Create the image task of model ``name``: its family's own, or the library's for its components.

    Its request has the fields of ``DrawInput``, and ``image`` or ``images`` if it accepts reference images. Raises
    ``BadRequest`` for a model without image output.
    """
    model = plan.models[name]
    family_task = _family_task(name, model)
    if family_task is not None and makes_images(family_task):
        return family_task
    fitting = [(kind, parts) for kind in PAINTERS if (parts := _match_components(kind, model)) is not None]
    if not fitting:
        raise BadRequest(f"{name} has no image output: its components are {', '.join(model.components)}", param="model")
    kind, parts = max(fitting, key=lambda each: len(each[1]))
    owners = plan.task_owners()
    return kind(**{field: _bind_task(task, name, part, model, owners) for field, (task, part) in parts.items()})


def create_video_task(name: str, plan: Plan) -> CompositeTask:
    """Create the video task of model ``name``: its family's own, or the library's for its components.

    Its request has the fields of ``VideoInput``. Raises ``BadRequest`` for a model without video output.
    """
    model = plan.models[name]
    family_task = _family_task(name, model)
    if family_task is not None and makes_videos(family_task):
        return family_task
    return _create_matched_task(VideoGeneration, name, plan, "has no video output")


def create_embedding_task(name: str, plan: Plan) -> CompositeTask:
    """Create the task of model ``name`` that embeds texts, or texts and images.

    Raises ``BadRequest`` for a model without one.
    """
    if _match_components(ImageTextEmbedding, plan.models[name]) is not None:
        return _create_matched_task(ImageTextEmbedding, name, plan, "has no embeddings")
    return _create_matched_task(TextEmbedding, name, plan, "has no embeddings")


def create_reranking_task(name: str, plan: Plan) -> CompositeTask:
    """Create the reranking task of model ``name``. Raises ``BadRequest`` for a model without one."""
    return _create_matched_task(TextReranking, name, plan, "is not a reranker")


def create_recognition_task(name: str, plan: Plan) -> CompositeTask:
    """Create the transcription task of model ``name``. Raises ``BadRequest`` for a model without one."""
    return _create_matched_task(SpeechRecognition, name, plan, "is not a recognizer")


def create_speech_task(name: str, plan: Plan) -> CompositeTask:
    """Create the text-to-speech task of model ``name``. Raises ``BadRequest`` for a model without one."""
    return _create_matched_task(TextToSpeech, name, plan, "is not a text-to-speech model")


def _create_matched_task(kind: type[CompositeTask], name: str, plan: Plan, lack: str) -> CompositeTask:
    """Create the task ``kind`` from the components of model ``name``. Raises ``BadRequest``, saying the ``lack``."""
    model = plan.models[name]
    parts = _match_components(kind, model)
    if parts is None:
        raise BadRequest(f"{name} {lack}: its components are {', '.join(model.components)}", param="model")
    owners = plan.task_owners()
    return kind(**{field: _bind_task(task, name, part, model, owners) for field, (task, part) in parts.items()})


def request_class(task: CompositeTask) -> Any:
    """Return the input type of the task's ``invoke``; ``ChatInput`` without a usable annotation."""
    try:
        hints = get_type_hints(type(task).invoke)
        [_, parameter, *_] = inspect.signature(type(task).invoke).parameters
    except (NameError, TypeError, ValueError):
        return ChatInput
    input_type = hints.get(parameter)
    return input_type if hasattr(input_type, "model_fields") else ChatInput


def build_request(model: str, task: CompositeTask, wish: Mapping[str, Any]) -> BaseModel:
    """Build the request of ``task`` from ``wish`` and defaults.

    Raises ``BadRequest`` whose ``param`` is a field of the task: see ``rename_params``.
    """
    try:
        request: BaseModel = request_class(task)(**wish)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            raise BadRequest(f"{model} does not support the parameter {name!r}: omit it", param=name) from None
        raise BadRequest(f"{name}: {first['msg']}", param=name) from None
    return request


@contextmanager
def rename_params(names: Mapping[str, str], media: str = "") -> Iterator[None]:
    """Rename ``param`` of errors inside to the client's ``names``; invalid files become ``media``."""
    try:
        yield
    except BadMedia as error:
        error.param = names.get(error.param, error.param) or media
        raise
    except Rejected as error:
        error.param = names.get(error.param, error.param)
        raise


def makes_images(task: CompositeTask) -> bool:
    """Return True if ``task`` generates images."""
    return request_class(task).model_fields.keys() >= _IMAGE_FIELDS and not makes_videos(task)


def makes_videos(task: CompositeTask) -> bool:
    """Return True if ``task`` generates videos."""
    return request_class(task).model_fields.keys() >= _IMAGE_FIELDS | _VIDEO_FIELDS


def max_reference_images(task: CompositeTask) -> int:
    """Return the maximum number of reference images of an image task."""
    fields = request_class(task).model_fields
    return MAX_IMAGES if IMAGES in fields else int(IMAGE in fields)


def requires_image(task: CompositeTask) -> bool:
    """Return True if an image task works only with a reference image."""
    fields = request_class(task).model_fields
    return any(name in fields and fields[name].is_required() for name in (IMAGE, IMAGES))


def _family_task(name: str, model: ModelPlan) -> CompositeTask | None:
    """Return the task that the model's family names; None if it names none."""
    import_path = "" if model.family == catalog.PYTHON else catalog.find_family(model.family)["composite"]
    return (
        plugins.import_object(import_path, f"composite of family {model.family}")(name, model) if import_path else None
    )


def _match_components(kind: type[CompositeTask], model: ModelPlan) -> dict[str, tuple[type[UnitTask], str]] | None:
    """Return the unit task and component of ``model`` per field of ``kind``; None if one is missing.

    A component fits a field if it runs the field's unit task. The component with the name of the field has priority;
    otherwise there must be exactly one that fits.
    """
    kinds = {} if model.family == catalog.PYTHON else catalog.find_family(model.family)["tasks"]
    tasks = {
        name: task
        for name, field in kind.model_fields.items()
        if (task := _unit_task_type(field.annotation)) is not None
    }
    bindings = {name: (task, name) for name, task in tasks.items() if _runs_task(name, task, model, kinds)}
    for name, task in tasks.items():
        used_components = {part for _, part in bindings.values()}
        left = [
            part for part in model.components if part not in used_components and _runs_task(part, task, model, kinds)
        ]
        if name not in bindings and len(left) == 1:
            bindings[name] = (task, left[0])
    missing = [name for name, field in kind.model_fields.items() if field.is_required() and name not in bindings]
    return None if missing else bindings


def _runs_task(part: str, task: type[UnitTask], model: ModelPlan, kinds: dict[str, str]) -> bool:
    """Return True if the component ``part`` of ``model`` runs such unit tasks."""
    return part in model.components and kinds.get(part) == task.kind


def _unit_task_type(annotation: Any) -> type[UnitTask] | None:
    """Return the unit task of a field, also of an optional one."""
    kinds = [each for each in (annotation, *get_args(annotation)) if isinstance(each, type)]
    return next((each for each in kinds if issubclass(each, UnitTask)), None)


def _bind_task(
    kind: type[Task], name: str, component: str, model: ModelPlan, owners: dict[str, tuple[tuple[str, str], ...]]
) -> Task:
    """Return the unit task that runs ``component``: that of another model if it is shared."""
    own = kind(model=name, component=component)
    task_name = model.tasks.get(component, own.name)
    if own.name == task_name:
        return own
    for owner, part in owners.get(task_name, ()):
        shared_task = kind(model=owner, component=part)
        if shared_task.name == task_name:
            return shared_task
    return own


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
    chats = _makes(create_chat_task, name, plan) is not None
    painter = _makes(create_image_task, name, plan)
    films = _makes(create_video_task, name, plan) is not None
    embeds = _makes(create_embedding_task, name, plan) is not None
    ranks = _makes(create_reranking_task, name, plan) is not None
    recognizes = _makes(create_recognition_task, name, plan) is not None
    speaks = _makes(create_speech_task, name, plan) is not None
    inputs = {*([] if recognizes else ["text"]), *model.encoders} | (
        {"image"} if painter and max_reference_images(painter) else set()
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
