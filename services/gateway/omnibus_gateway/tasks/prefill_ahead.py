"""Early prefill of prompts whose last message is incomplete: the turn then starts after the common prefix.

Language models that cache prompts of conversations compare them row by row (``omnibus_llm.engine.kept_prompts``),
so the answer does not depend on this. Such a request runs only on executors with spare capacity. It does not count as
demand, has no price, and its outputs are not read.
"""

import asyncio
import inspect
from collections.abc import Iterator

from omnibus.bus.messages import PREFILL_ONLY
from omnibus.errors import DeadlineExceeded, StageUnavailable
from omnibus.task import MLLM, Segment, record
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.request.request import ClientRequest
from omnibus_gateway.routing.replicas import PREFILL_COMPONENTS
from omnibus_gateway.routing.router import InvocationTicket
from omnibus_gateway.tasks.chat import Chat
from omnibus_gateway.tasks.encode_ahead import MAX_SECONDS, wait_quiet


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
