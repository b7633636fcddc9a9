"""Work ahead of a request: early encoding of incomplete audio, and early prefill of incomplete prompts.

The turn then starts after the part that is cached.

Such a request runs only on executors with spare capacity. It does not count as demand, has no price, and its outputs
are not read.

Language models that cache prompts of conversations compare them row by row (``omnibus_llm.engine.kept_prompts``),
so the answer does not depend on this. Such a request runs only on executors with spare capacity. It does not count as
demand, has no price, and its outputs are not read.
"""

import asyncio
import inspect
from collections.abc import Iterator, Mapping
from hashlib import sha256
from math import ceil
from typing import Any

from omnibus.bus.messages import PREFILL_ONLY
from omnibus.errors import DeadlineExceeded, StageUnavailable
from omnibus.families.catalog import find_audio_window
from omnibus.plan import ModelPlan, Path
from omnibus.task import MLLM, Segment, record
from omnibus.task.library.media import EncodeInput
from omnibus_gateway.dispatch.dispatcher import MAX_ATTEMPTS
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.request.inputs import place_input
from omnibus_gateway.request.request import ClientRequest
from omnibus_gateway.routing.assignment import ModelPart
from omnibus_gateway.routing.replicas import PREFILL_COMPONENTS
from omnibus_gateway.routing.router import InvocationTicket
from omnibus_gateway.tasks.chat import Chat
from omnibus_gateway.tasks.prepared_chat import hash_cache_key

#: Seconds after which an encoding is cancelled: more audio has arrived by then.
MAX_SECONDS = 5.0
#: Approximate tokens per second of audio.
_TOKENS_PER_SECOND = 25


class AheadEncoder:
    """Encodes audio for the models of ``chat``."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    def window_seconds(self, model: str) -> float:
        """Return the seconds of audio in one window of the encoder; 0 if it has no windows."""
        router = self._chat.runs.router
        plan = router.plan.models.get(router.base_model(model)) if router.plan is not None else None
        return find_audio_window(plan.family) if plan is not None and "audio" in plan.encoders else 0.0

    async def encode(self, model: str, wav: bytes, new_seconds: float, conversation: str) -> None:
        """Encode ``wav`` on the path of its ``conversation``; wait until it is done.

        About ``new_seconds`` of the audio are new. Raises ``Overloaded`` if the executors have other work, and
        ``StageUnavailable`` if no executor caches the result.
        """
        run = self._chat.open_request(model)
        run.early, run.is_demand, run.cache_key = True, False, hash_cache_key(conversation)
        status = "cancelled"  # a failure is not reported and makes no dead letter: the answer does not depend on it
        try:
            async with asyncio.timeout(MAX_SECONDS):
                await wait_quiet(await self._send(run, wav, ceil(_TOKENS_PER_SECOND * new_seconds)))
            status = "done"
        except TimeoutError:
            raise DeadlineExceeded(f"the audio was not encoded within {MAX_SECONDS:g} s") from None
        finally:
            run.end(status)

    async def _send(self, run: ClientRequest, wav: bytes, work: int) -> InflightInvocation:
        runs, about = self._chat.runs, ("audio", "audio/wav", sha256(wav).hexdigest())
        segment = self._record_graph(run.model, {"modality": "audio", "sha256": about[2]}, work)
        [part] = runs.router.assign(segment.nodes, run.model).parts
        await run.wait_admission(segment)
        try:
            ticket = run.take_ticket(segment)
            self._check_kept(run.model, part, runs.router.choose_path(part, ticket))
            media = await place_input(runs.tensors, None, wav, about, run.id, run.deadline, MAX_ATTEMPTS + 1, run.salt)
            return run.send_segment(self._record_graph(run.model, media, work), ticket=ticket)
        except BaseException:
            runs.tensors.end_invocation(run.id)
            run.release_admission()
            raise

    def _record_graph(self, model: str, media: Mapping[str, Any], work: int) -> Segment:
        """Record the graph of one encoding, whose outputs are not read."""
        task = self._chat.get_task(model)
        if not isinstance(task, MLLM):
            raise StageUnavailable(f"{model} has no encoder that can be called alone", stage="audio")
        encoder = task.encoder_for("audio")

        def encode(media_input: Mapping[str, Any]) -> None:
            encoder.invoke(EncodeInput(media=media_input), work=work)

        return record(encode, media)

    def _check_kept(self, model: str, part: ModelPart, path: Path) -> None:
        """Raise ``StageUnavailable`` unless later requests with this prefix find the result."""
        router, [component] = self._chat.runs.router, part.used
        option = path.options[component]
        serving = router.serving_executors(model, option)
        keeps = bool(serving) and all(each.status.keeps for each in serving)
        if not keeps or (len(serving) > 1 and not _is_encoder_option(router.get_model(model), option)):
            raise StageUnavailable(f"no executor of {model} caches its encodings", stage=component)


def _is_encoder_option(plan: ModelPlan, option: str) -> bool:
    """Return True for executors that only encode: requests with a common prefix go to the same one."""
    return set(plan.options[option].components) <= set(plan.encoders.values())


async def wait_quiet(running: InflightInvocation) -> None:
    """Wait until all nodes have reported. Raises its error."""
    quiet = asyncio.Event()
    running.on_quiet = quiet.set
    if running.failure is None and not running.all_reported:
        await quiet.wait()
    running.on_quiet = None
    if running.failure is not None:
        raise running.failure


class AheadPrefill:
    """Computes prompts for the models of ``chat``."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    async def prefill(self, request: ChatRequest) -> None:
        """Compute the prompt of ``request`` on the path of its conversation.

        Waits until it is done. Raises ``Overloaded`` if the executors have other work, and ``StageUnavailable`` if no
        executor caches it.
        """
        self._check_kept(request.model)
        run = self._chat.open_request(request.model)
        run.early, run.is_demand = True, False
        status = "cancelled"  # a failure is not reported and makes no dead letter: the answer does not depend on it
        try:
            async with asyncio.timeout(MAX_SECONDS):
                await self._send(run, request)
                await wait_quiet(run.segments[-1])
            status = "done"
        except TimeoutError:
            raise DeadlineExceeded(f"the prompt was not computed within {MAX_SECONDS:g} s") from None
        finally:
            run.end(status)

    async def _send(self, run: ClientRequest, request: ChatRequest) -> None:
        prepared_chat, task = await self._chat.prepare_request(run, request), self._chat.get_task(run.model)
        if not prepared_chat.cache_key or not isinstance(task, MLLM) or inspect.iscoroutinefunction(task.invoke):
            raise StageUnavailable(f"{run.model} has no conversation whose prompt can be cached", stage="thinker")
        whole = record(task.invoke, prepared_chat.input, run.choice_point)
        prepared_chat.prefill_only()
        await self._chat.begin_answer(run, prepared_chat)
        run.estimates = ()  # a request without an answer must not affect the estimates
        self._check_path(run, whole)

    def _check_kept(self, model: str) -> None:
        """Raise ``StageUnavailable`` unless all executors that may compute the prompt cache it."""
        router = self._chat.runs.router
        base = router.base_model(model)
        plan = router.get_model(base)
        options = [name for name, spec in plan.options.items() if not PREFILL_COMPONENTS.isdisjoint(spec.components)]
        serving = [each for option in options for each in router.serving_executors(base, option)]
        if not serving or not all(PREFILL_ONLY in each.status.takes for each in serving):
            raise StageUnavailable(f"no executor of {model} caches prompts", stage="thinker")

    def _check_path(self, run: ClientRequest, whole: Segment) -> None:
        """Raise ``StageUnavailable`` if the answer with graph ``whole`` takes another path."""
        sent_invocation = run.segments[-1].invocation
        used_options = dict(
            zip([node.component for node in sent_invocation.nodes], sent_invocation.options, strict=True)
        )
        for model, component, option in self._find_options(run, whole, sent_invocation.id):
            if used_options.get(component, "").removeprefix(f"{model}/") != option:
                raise StageUnavailable(f"answers of {run.model} take another path", stage=component)

    def _find_options(self, run: ClientRequest, whole: Segment, id: str) -> Iterator[tuple[str, str, str]]:
        """Yield model, component and option of each prompt component."""
        router = self._chat.runs.router
        for part in router.assign(whole.nodes, run.model).parts:
            if PREFILL_COMPONENTS.isdisjoint(part.components):
                continue
            path = router.choose_path(part, InvocationTicket(id, part.kind, 0, run.cache_key))
            for component in PREFILL_COMPONENTS.intersection(part.components):
                yield part.model, component, path.options[component]
