"""Mapping from components to the engines that run them.

The module of an engine is imported on first use, so that a process loads only the components it hosts.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from msgspec import structs

from omnibus import checkpoints
from omnibus.checkpoints.gguf_header import MULTIMODAL, find_projector, is_gguf, read_gguf_header, require_embedder
from omnibus.errors import BadRequest
from omnibus.executor.runner import Runner
from omnibus.executor.settings import INT8, ExecutorSettings, LlamaCppSettings, VllmSettings, float_dtype
from omnibus.executor.step_budget import StepGoals
from omnibus.families import catalog
from omnibus.settings import read_settings

if TYPE_CHECKING:
    from omnibus_llm.engine.model import AdapterLimits, ThinkerCore, ThinkSettings
    from omnibus_llm.vllm.model import VllmCore

#: Objects that runners of one executor share; dropped with the last of them.
_cores: "WeakValueDictionary[ExecutorSettings, ThinkerCore]" = WeakValueDictionary()
_engines: "WeakValueDictionary[tuple[ExecutorSettings, bool], VllmCore]" = WeakValueDictionary()

#: Components that vLLM runs.
_VLLM_COMPONENTS = ("thinker", "prefill", "decode")


def transformers(component: str, settings: ExecutorSettings) -> Runner:
    """Return the transformers engine of a component, on CPU or GPU. Raises ``BadRequest`` for an unknown one."""
    if component not in _TRANSFORMERS_RUNNERS:
        raise BadRequest(
            f"unknown component {component!r} for the transformers engine; use one of {sorted(_TRANSFORMERS_RUNNERS)}"
        )
    if not settings.graphs:
        from omnibus_models.recorded_calls import RecordingSettings

        RecordingSettings.enabled = False
    return _TRANSFORMERS_RUNNERS[component](component, settings)


def vllm(component: str, settings: ExecutorSettings) -> Runner:
    """Return vLLM for language models and their halves, else transformers.

    Raises ``BadRequest`` for an unknown component.
    """
    if component not in _VLLM_COMPONENTS:
        # The other components must not wait for, or load, a language model that this process lacks.
        other_components = ",".join(each for each in settings.components.split(",") if each not in _VLLM_COMPONENTS)
        return transformers(component, structs.replace(settings, components=other_components))
    from omnibus_llm.vllm.prefill_decode import VllmDecodeRunner, VllmPrefillRunner
    from omnibus_llm.vllm.runner import VllmRunner

    runners: dict[str, Callable[[VllmCore], Runner]] = {
        "thinker": VllmRunner,
        "prefill": VllmPrefillRunner,
        "decode": VllmDecodeRunner,
    }
    return runners[component](_shared_vllm_core(component, settings))


def _shared_vllm_core(component: str, settings: ExecutorSettings) -> "VllmCore":
    """Return the executor's one engine, shared by both model halves."""
    from omnibus_llm.vllm.model import VllmCore
    from omnibus_llm.vllm.protocol import Launch
    from omnibus_llm.vllm.v032.engine import VllmEngineProcess

    halves = component != "thinker"
    core = _engines.get((settings, halves))
    if core is None or core.closed:
        if settings.dtype == INT8:
            raise BadRequest("dtype int8 is for omnibus_engines:transformers: set OMNIBUS_VLLM_QUANTIZATION for vLLM")
        own = read_settings(VllmSettings)
        _check_vllm_settings(own, halves, bool(settings.ttft or settings.tbt))
        checkpoint = checkpoints.resolve_checkpoint(settings.checkpoint)
        checkpoints.require_safetensors(checkpoint)
        launch = Launch(
            component=component,
            checkpoint=checkpoint,
            device=settings.device,
            dtype=settings.dtype,
            slots=settings.batch,
            context=settings.context,
            step_tokens=own.step_tokens,
            kv_bytes=own.kv_mib << 20,
            memory=own.memory,
            prefix_cache=own.prefix_cache,
            tensor_parallel=own.tensor_parallel,
            pipeline_parallel=own.pipeline_parallel,
            eager=own.eager,
            threads=settings.threads,
            halves=halves,
            goals=StepGoals(settings.ttft, settings.tbt),
            adapters=tuple(_adapter_directories(settings).items()),
            loadable=_loadable_adapters(settings),
            quantization=own.quantization,
            speculative_tokens=own.speculative_tokens,
            speculative_model=checkpoints.resolve_checkpoint(own.speculative_model) if own.speculative_model else None,
        )
        core = _engines[settings, halves] = VllmCore(settings.family, launch, VllmEngineProcess)
    return core


def _check_vllm_settings(own: VllmSettings, halves: bool, goals: bool) -> None:
    """Raise ``BadRequest`` for settings that cannot be combined with ``halves`` or ``goals``."""
    if own.speculative_tokens and (halves or goals):
        raise BadRequest(
            "vLLM cannot speculate with prefill/decode halves or goals: set OMNIBUS_VLLM_SPECULATIVE_TOKENS=0"
        )
    if own.speculative_model and not own.speculative_tokens:
        raise BadRequest(
            "OMNIBUS_VLLM_SPECULATIVE_MODEL is unused: set OMNIBUS_VLLM_SPECULATIVE_TOKENS to the tokens of a step"
        )
    if own.pipeline_parallel > 1 and (halves or goals or own.speculative_tokens):
        raise BadRequest(
            "pipeline parallelism of vLLM cannot be combined with prefill/decode halves, goals or speculation: "
            "set OMNIBUS_VLLM_PIPELINE_PARALLEL=1"
        )


def llama_cpp(component: str, settings: ExecutorSettings) -> Runner:
    """Return llama.cpp for a language model, the encoder of its images, or an embedder in a GGUF file.

    Raises ``BadRequest`` for other components and checkpoints.
    """
    if component not in ("thinker", "encoder", "embedder"):
        raise BadRequest(f"llama.cpp runs the components thinker, encoder and embedder, not {component!r}")
    file = checkpoints.resolve_checkpoint(settings.checkpoint)
    if not is_gguf(file):
        raise BadRequest(f"{file} is not a GGUF file: name one, or use omnibus_engines:transformers")
    header = read_gguf_header(file)  # llama.cpp may end the process at a file that is not whole
    if component == "embedder":
        require_embedder(header)
        return _make_embedder(component, settings)
    if component == "encoder":  # its loop is not that of the language model, whatever the goals
        return _make_encoder(component, structs.replace(settings, ttft=0.0, tbt=0.0))
    from omnibus_llm.engine.llama_cpp_core import LlamaCppCore
    from omnibus_llm.runners.thinker import ThinkRunner

    kv_bytes = read_settings(LlamaCppSettings).kv_mib << 20
    sees = settings.family == MULTIMODAL
    if sees and find_projector(file) is None:
        raise BadRequest(f"no projector (mmproj*.gguf) that fits is next to {file}: put it there, or declare causal_lm")
    return ThinkRunner(LlamaCppCore(file, settings.device, _think_settings(settings), kv_bytes, sees=sees))


def sim(component: str, settings: ExecutorSettings) -> Runner:
    """Return the simulation: it computes nothing and takes as long as a profile predicts.

    Raises ``BadRequest`` for an invalid profile.
    """
    from omnibus.executor.sim.engine import KINDS, engine
    from omnibus_llm.runners.scripted import SCRIPTED_KINDS

    return engine(component, settings, {**KINDS, **SCRIPTED_KINDS})


def _make_encoder(component: str, settings: ExecutorSettings) -> Runner:
    from omnibus_encoder.media_encoder import EncodeRunner, EncodeSettings

    limits = EncodeSettings(
        items=settings.batch,
        tokens=settings.media_tokens,
        threads=settings.threads,
        goals=StepGoals(settings.ttft, settings.tbt),
        cache=settings.cache_mib << 20,
    )
    loop = _shared_core(settings) if _shares_loop(settings) else None
    return EncodeRunner(component, *_checkpoint_source(settings), limits, loop)


def _make_vae_encoder(component: str, settings: ExecutorSettings) -> Runner:
    # The encoder of a VAE makes the latents that its family's denoiser takes.
    if catalog.find_family(settings.family)["tasks"][component] != "encode-frame":
        return _make_encoder(component, settings)
    from omnibus_encoder.frame_encoder import FrameEncodeRunner

    return FrameEncodeRunner(component, *_checkpoint_source(settings), threads=settings.threads)


def _make_thinker(component: str, settings: ExecutorSettings) -> Runner:
    from omnibus_llm.runners.thinker import ThinkRunner

    return ThinkRunner(_shared_core(settings))


def _make_prefill(component: str, settings: ExecutorSettings) -> Runner:
    from omnibus_llm.runners.prefill_decode import PrefillRunner

    return PrefillRunner(_shared_core(settings))


def _make_decode(component: str, settings: ExecutorSettings) -> Runner:
    from omnibus_llm.runners.prefill_decode import DecodeRunner

    return DecodeRunner(_shared_core(settings))


def _shared_core(settings: ExecutorSettings) -> "ThinkerCore":
    """Return the executor's one language model, shared by its components."""
    from omnibus_llm.engine.model import ThinkerCore

    core = _cores.get(settings)
    if core is None or core.closed:
        core = _cores[settings] = ThinkerCore(*_checkpoint_source(settings), _think_settings(settings))
    return core


def _think_settings(settings: ExecutorSettings) -> "ThinkSettings":
    from omnibus_llm.engine.model import ThinkSettings

    return ThinkSettings(
        slots=settings.batch,
        context=settings.context,
        share=settings.share,
        threads=settings.threads,
        goals=StepGoals(settings.ttft, settings.tbt),
        beside=_shares_loop(settings),
        decodes=not _hosted_makers(settings).isdisjoint({_make_thinker, _make_decode}),
        graphs=settings.graphs,
        int8=settings.dtype == INT8,
        kept_bytes=settings.prompt_cache_mib << 20,
        adapters=_adapter_directories(settings),
        loadable=_loadable_adapters(settings),
    )


def _shares_loop(settings: ExecutorSettings) -> bool:
    """Return True if encoders share the language model's loop: both are in this executor, and there are goals."""
    makers, goals = _hosted_makers(settings), StepGoals(settings.ttft, settings.tbt)
    return (
        bool(goals) and _make_encoder in makers and not makers.isdisjoint({_make_thinker, _make_prefill, _make_decode})
    )


def _hosted_makers(settings: ExecutorSettings) -> set[Callable[[str, ExecutorSettings], Runner] | None]:
    """Return the functions that make the runners of this executor."""
    return {_TRANSFORMERS_RUNNERS.get(component) for component in settings.components.split(",")}


def _make_talker(component: str, settings: ExecutorSettings) -> Runner:
    from omnibus_llm.runners.talker import TalkRunner, TalkSettings

    limits = TalkSettings(
        slots=settings.batch,
        threads=settings.threads,
        graphs=settings.graphs,
        seconds=settings.speech_seconds,
        token_seconds=settings.speech_token_seconds,
    )
    return TalkRunner(component, *_checkpoint_source(settings), limits)


def _make_speaker(component: str, settings: ExecutorSettings) -> Runner:
    from omnibus_engines.component import ComponentSource
    from omnibus_llm.runners.speaker import SpeakRunner

    return SpeakRunner(ComponentSource(component, *_checkpoint_source(settings)), settings.threads)


def _make_vocoder(component: str, settings: ExecutorSettings) -> Runner:
    # The vocoder of a text-to-speech model takes the calls of that model.
    if catalog.find_family(settings.family)["tasks"][component] == "synthesize":
        from omnibus_engines.component import ComponentSource
        from omnibus_generator.synthesizer import SynthesizeRunner

        return SynthesizeRunner(ComponentSource(component, *_checkpoint_source(settings)), settings.threads)
    from omnibus_generator.vocoder import VocodeRunner, VocodeSettings

    return VocodeRunner(component, *_checkpoint_source(settings), VocodeSettings(threads=settings.threads))


def _make_text_encoder(component: str, settings: ExecutorSettings) -> Runner:
    from omnibus_encoder.media_encoder import EncodeSettings
    from omnibus_encoder.text_engines import TextEncodeRunner

    limits = EncodeSettings(items=settings.batch, threads=settings.threads)
    return TextEncodeRunner(component, *_checkpoint_source(settings), limits)


def _make_embedder(component: str, settings: ExecutorSettings) -> Runner:
    from omnibus_encoder.media_encoder import EncodeSettings
    from omnibus_encoder.text_engines import EmbedRunner, SentenceRunner

    limits = EncodeSettings(items=settings.batch, tokens=settings.media_tokens, threads=settings.threads)
    is_own = component in catalog.find_family(settings.family)["components"]
    return (SentenceRunner if is_own else EmbedRunner)(*_checkpoint_source(settings), limits)


def _make_reranker(component: str, settings: ExecutorSettings) -> Runner:
    from omnibus_encoder.media_encoder import EncodeSettings
    from omnibus_encoder.text_engines import RerankRunner

    limits = EncodeSettings(items=settings.batch, tokens=settings.media_tokens, threads=settings.threads)
    return RerankRunner(component, *_checkpoint_source(settings), limits)


def _make_transcriber(component: str, settings: ExecutorSettings) -> Runner:
    from omnibus_llm.runners.transcriber import TranscribeRunner, TranscribeSettings

    limits = TranscribeSettings(slots=settings.batch, threads=settings.threads)
    return TranscribeRunner(component, *_checkpoint_source(settings), limits)


def _make_denoiser(component: str, settings: ExecutorSettings) -> Runner:
    from omnibus_generator.denoiser import DenoiseRunner, DenoiseSettings

    limits = DenoiseSettings(pictures=settings.batch, threads=settings.threads)
    return DenoiseRunner(component, *_checkpoint_source(settings), limits)


def _make_prior(component: str, settings: ExecutorSettings) -> Runner:
    from omnibus_generator.denoiser import DenoiseSettings, PriorRunner

    limits = DenoiseSettings(pictures=settings.batch, threads=settings.threads)
    return PriorRunner(component, *_checkpoint_source(settings), limits)


def _make_latent_decoder(component: str, settings: ExecutorSettings) -> Runner:
    from omnibus_generator.vae_decoder import (
        DecodeAudioRunner,
        DecodeImageRunner,
        DecodeVideoRunner,
        LatentDecodeSettings,
    )

    decode_settings = LatentDecodeSettings(threads=settings.threads)
    if component == "audio_vae":
        return DecodeAudioRunner(component, *_checkpoint_source(settings), decode_settings)
    # The decoder of a VAE makes images or videos, as its family does.
    is_video = catalog.find_family(settings.family)["tasks"][component] == "decode-video"
    return (DecodeVideoRunner if is_video else DecodeImageRunner)(
        component, *_checkpoint_source(settings), decode_settings
    )


def _checkpoint_source(settings: ExecutorSettings) -> tuple[str, Path, str, str]:
    """Return family, checkpoint, device and dtype.

    Raises ``NotFound`` for a hub checkpoint that is not in the local cache.
    """
    checkpoint = checkpoints.resolve_checkpoint(settings.checkpoint)
    return settings.family, checkpoint, settings.device, float_dtype(settings.dtype)


def _adapter_directories(settings: ExecutorSettings) -> dict[str, Path]:
    """Return the directories of adapters by name. Raises ``NotFound`` for a hub adapter missing in the local cache."""
    adapters = settings.adapter_checkpoints.items()
    return {name: checkpoints.find_checkpoint(checkpoint) for name, checkpoint in adapters}


def _loadable_adapters(settings: ExecutorSettings) -> "AdapterLimits":
    """Return the limits of adapters that requests may load into this executor."""
    from omnibus_llm.engine.model import NO_ADAPTERS, AdapterLimits

    if not settings.adapters_dir or settings.adapter_slots < 1:
        return NO_ADAPTERS
    return AdapterLimits(settings.adapters_dir, settings.adapter_slots, settings.adapter_rank)


_TRANSFORMERS_RUNNERS: dict[str, Callable[[str, ExecutorSettings], Runner]] = {
    "vision": _make_encoder,
    "audio": _make_encoder,
    "encoder": _make_encoder,
    "thinker": _make_thinker,
    "prefill": _make_prefill,
    "decode": _make_decode,
    "talker": _make_talker,
    "speaker": _make_speaker,
    "vocoder": _make_vocoder,
    "text_encoder": _make_text_encoder,
    "embedder": _make_embedder,
    "reranker": _make_reranker,
    "transcriber": _make_transcriber,
    "vae_encoder": _make_vae_encoder,
    "prior": _make_prior,
    "dit": _make_denoiser,
    "vae": _make_latent_decoder,
    "audio_vae": _make_latent_decoder,
}
