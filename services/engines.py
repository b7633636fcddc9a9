"""Mapping from components to the engines that run them. An engine's module is imported when it is needed, so that a
process loads no more than the components it hosts."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from msgspec import structs

from omnibus import checkpoints
from omnibus.errors import BadRequest
from omnibus.executor.runner import Runner
from omnibus.executor.step_budget import Goals
from omnibus.families import catalog
from omnibus.settings import ExecutorSettings, VllmSettings, load

if TYPE_CHECKING:
    from services.llm.engine.model import Core
    from services.llm.vllm.model import VllmCore

#: What runners of one executor share; gone with the last of them.
_cores: "WeakValueDictionary[ExecutorSettings, Core]" = WeakValueDictionary()
_engines: "WeakValueDictionary[tuple[ExecutorSettings, bool], VllmCore]" = WeakValueDictionary()

#: What vLLM runs.
_VLLM = ("thinker", "prefill", "decode")


def transformers(component: str, settings: ExecutorSettings) -> Runner:
    """The transformers engine: everything, on CPU or GPU. Raises ``BadRequest`` for an unknown component."""
    if component not in _TRANSFORMERS:
        raise BadRequest(
            f"no transformers engine for component {component!r}; there is one for {sorted(_TRANSFORMERS)}"
        )
    return _TRANSFORMERS[component](component, settings)


def vllm(component: str, settings: ExecutorSettings) -> Runner:
    """vLLM for language models and their halves, transformers for every other component.

    Raises ``BadRequest`` for an unknown component.
    """
    if component not in _VLLM:
        # Nothing of theirs may wait for, or load, the language model that is not there.
        others = ",".join(each for each in settings.components.split(",") if each not in _VLLM)
        return transformers(component, structs.replace(settings, components=others))
    from services.llm.vllm.prefill_decode import VllmDecodeRunner, VllmPrefillRunner
    from services.llm.vllm.runner import VllmRunner

    runners: dict[str, Callable[[VllmCore], Runner]] = {
        "thinker": VllmRunner,
        "prefill": VllmPrefillRunner,
        "decode": VllmDecodeRunner,
    }
    return runners[component](_vllm_language(component, settings))


def _vllm_language(component: str, settings: ExecutorSettings) -> "VllmCore":
    """The one engine of an executor, for both halves of its language model."""
    from services.llm.vllm.model import VllmCore
    from services.llm.vllm.protocol import Launch
    from services.llm.vllm.v032.engine import Core

    halves = component != "thinker"
    core = _engines.get((settings, halves))
    if core is None:
        own = load(VllmSettings)
        if halves and own.tensor_parallel > 1:
            raise BadRequest(
                "prefill and decode in vLLM take one GPU each; set OMNIBUS_VLLM_TENSOR_PARALLEL=1 or declare a thinker"
            )
        launch = Launch(
            component=component,
            checkpoint=checkpoints.located(settings.checkpoint),
            device=settings.device,
            dtype=settings.dtype,
            slots=settings.batch,
            context=settings.context,
            step_tokens=own.step_tokens,
            kv_bytes=own.kv_mib << 20,
            memory=own.memory,
            tensor_parallel=own.tensor_parallel,
            eager=own.eager,
            threads=settings.threads,
            halves=halves,
        )
        core = _engines[settings, halves] = VllmCore(settings.family, launch, Core)
    return core


def sim(component: str, settings: ExecutorSettings) -> Runner:
    """The simulation: computes nothing and takes as long as a profile says. Raises ``BadRequest`` for a wrong one."""
    from omnibus.executor.sim import engine

    return engine(component, settings)


def _encode(component: str, settings: ExecutorSettings) -> Runner:
    from services.encoder.media_encoder import EncodeRunner, EncodeSettings

    limits = EncodeSettings(
        items=settings.batch,
        tokens=settings.media_tokens,
        threads=settings.threads,
        goals=Goals(settings.ttft, settings.tbt),
        cache=settings.cache_mib << 20,
    )
    loop = _language(settings) if _beside(settings) else None
    return EncodeRunner(component, *_source(settings), limits, loop)


def _think(component: str, settings: ExecutorSettings) -> Runner:
    from services.llm.runners.thinker import ThinkRunner

    return ThinkRunner(_language(settings))


def _prefill(component: str, settings: ExecutorSettings) -> Runner:
    from services.llm.runners.prefill_decode import PrefillRunner

    return PrefillRunner(_language(settings))


def _decode(component: str, settings: ExecutorSettings) -> Runner:
    from services.llm.runners.prefill_decode import DecodeRunner

    return DecodeRunner(_language(settings))


def _language(settings: ExecutorSettings) -> "Core":
    """The one language model of an executor, for all its components that are parts of it."""
    from services.llm.engine.model import Core, ThinkSettings

    core = _cores.get(settings)
    if core is None:
        limits = ThinkSettings(
            slots=settings.batch,
            context=settings.context,
            share=settings.share,
            threads=settings.threads,
            goals=Goals(settings.ttft, settings.tbt),
            beside=_beside(settings),
            decodes=not _hosted(settings).isdisjoint({_think, _decode}),
        )
        core = _cores[settings] = Core(*_source(settings), limits)
    return core


def _beside(settings: ExecutorSettings) -> bool:
    """Return whether encoders share the language model's loop: both are in this executor, and there are goals."""
    hosted, goals = _hosted(settings), Goals(settings.ttft, settings.tbt)
    return bool(goals) and _encode in hosted and not hosted.isdisjoint({_think, _prefill, _decode})


def _hosted(settings: ExecutorSettings) -> set[Callable[[str, ExecutorSettings], Runner] | None]:
    """Return the functions that make the runners of this executor."""
    return {_TRANSFORMERS.get(component) for component in settings.components.split(",")}


def _talk(component: str, settings: ExecutorSettings) -> Runner:
    from services.llm.runners.talker import TalkRunner, TalkSettings

    return TalkRunner(component, *_source(settings), TalkSettings(slots=settings.batch, threads=settings.threads))


def _vocode(component: str, settings: ExecutorSettings) -> Runner:
    from services.generator.vocoder import VocodeRunner, VocodeSettings

    return VocodeRunner(component, *_source(settings), VocodeSettings(threads=settings.threads))


def _text_encode(component: str, settings: ExecutorSettings) -> Runner:
    from services.encoder.media_encoder import EncodeSettings
    from services.encoder.text_encoder import TextEncodeRunner

    limits = EncodeSettings(items=settings.batch, threads=settings.threads)
    return TextEncodeRunner(component, *_source(settings), limits)


def _embed(component: str, settings: ExecutorSettings) -> Runner:
    from services.encoder.media_encoder import EncodeSettings
    from services.encoder.text_embedding import EmbedRunner

    limits = EncodeSettings(items=settings.batch, tokens=settings.media_tokens, threads=settings.threads)
    return EmbedRunner(*_source(settings), limits)


def _denoise(component: str, settings: ExecutorSettings) -> Runner:
    from services.generator.denoiser import DenoiseRunner, DenoiseSettings

    limits = DenoiseSettings(pictures=settings.batch, threads=settings.threads)
    return DenoiseRunner(component, *_source(settings), limits)


def _prior(component: str, settings: ExecutorSettings) -> Runner:
    from services.generator.denoiser import DenoiseSettings
    from services.generator.prior import PriorRunner

    limits = DenoiseSettings(pictures=settings.batch, threads=settings.threads)
    return PriorRunner(component, *_source(settings), limits)


def _decode_latents(component: str, settings: ExecutorSettings) -> Runner:
    from services.generator.vae_decoder import DecodeAudioRunner, DecodeImageRunner, DecodeVideoRunner, PictureSettings

    made = PictureSettings(threads=settings.threads)
    if component == "audio_vae":
        return DecodeAudioRunner(component, *_source(settings), made)
    # The decoder of a VAE makes what its family makes.
    films = catalog.family(settings.family)["tasks"][component] == "decode-video"
    return (DecodeVideoRunner if films else DecodeImageRunner)(component, *_source(settings), made)


def _source(settings: ExecutorSettings) -> tuple[str, Path, str, str]:
    """Raises ``NotFound`` for a checkpoint of the hub that is not in its cache."""
    return settings.family, checkpoints.located(settings.checkpoint), settings.device, settings.dtype


_TRANSFORMERS: dict[str, Callable[[str, ExecutorSettings], Runner]] = {
    "vision": _encode,
    "audio": _encode,
    "thinker": _think,
    "prefill": _prefill,
    "decode": _decode,
    "talker": _talk,
    "vocoder": _vocode,
    "text_encoder": _text_encode,
    "embedder": _embed,
    "vae_encoder": _encode,
    "prior": _prior,
    "dit": _denoise,
    "vae": _decode_latents,
    "audio_vae": _decode_latents,
}
