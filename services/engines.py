"""Which engine runs which component. An engine's module is imported when it is needed, so that a
process loads no more than the components it hosts."""

from collections.abc import Callable
from pathlib import Path

from omnibus.errors import BadRequest
from omnibus.executor.contract import Runner
from omnibus.settings import ExecutorSettings, VllmSettings, load


def transformers(component: str, settings: ExecutorSettings) -> Runner:
    """The transformers engine: everything, on CPU or GPU. Raises ``BadRequest`` for an unknown component."""
    if component not in _TRANSFORMERS:
        raise BadRequest(
            f"no transformers engine for component {component!r}; there is one for {sorted(_TRANSFORMERS)}"
        )
    return _TRANSFORMERS[component](component, settings)


def vllm(component: str, settings: ExecutorSettings) -> Runner:
    """vLLM for thinkers, transformers for every other component. Raises ``BadRequest`` for an unknown component."""
    if component != "thinker":
        return transformers(component, settings)
    from services.llm.vllm.port import Launch
    from services.llm.vllm.runner import VllmRunner
    from services.llm.vllm_032.engine import Core

    own = load(VllmSettings)
    launch = Launch(
        component=component,
        checkpoint=Path(settings.checkpoint),
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
    )
    return VllmRunner(settings.family, launch, Core)


def sim(component: str, settings: ExecutorSettings) -> Runner:
    """The simulation: computes nothing and takes as long as a profile says. Raises ``BadRequest`` for a wrong one."""
    from omnibus.executor.sim import engine

    return engine(component, settings)


def _encode(component: str, settings: ExecutorSettings) -> Runner:
    from services.encoder.runner import EncodeRunner, EncodeSettings

    limits = EncodeSettings(items=settings.batch, threads=settings.threads)
    return EncodeRunner(component, *_source(settings), limits)


def _think(component: str, settings: ExecutorSettings) -> Runner:
    from services.llm.runner import ThinkRunner, ThinkSettings

    limits = ThinkSettings(slots=settings.batch, context=settings.context, threads=settings.threads)
    return ThinkRunner(component, *_source(settings), limits)


def _talk(component: str, settings: ExecutorSettings) -> Runner:
    from services.llm.talk import TalkRunner, TalkSettings

    return TalkRunner(component, *_source(settings), TalkSettings(slots=settings.batch, threads=settings.threads))


def _vocode(component: str, settings: ExecutorSettings) -> Runner:
    from services.generator.runner import VocodeRunner, VocodeSettings

    return VocodeRunner(component, *_source(settings), VocodeSettings(threads=settings.threads))


def _source(settings: ExecutorSettings) -> tuple[str, Path, str, str]:
    return settings.family, Path(settings.checkpoint), settings.device, settings.dtype


_TRANSFORMERS: dict[str, Callable[[str, ExecutorSettings], Runner]] = {
    "vision": _encode,
    "audio": _encode,
    "thinker": _think,
    "talker": _talk,
    "vocoder": _vocode,
}
