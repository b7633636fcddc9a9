"""The ``Runner`` of a thinker whose layers run in vLLM."""

from contextlib import aclosing, closing
from functools import partial
from typing import Any, ClassVar

from omnibus.errors import BadRequest
from omnibus.executor.job_clock import OccupancyTimer
from omnibus.executor.runner import Job
from omnibus.executor.settings import ExecutorSettings
from omnibus_llm.runners.prompt_tokens import send_prompt_tokens
from omnibus_llm.runners.talker import SpeechWriter, SpokenTokens
from omnibus_llm.runners.thinker import TextWriter, close_counted, open_reply, send_answer
from omnibus_llm.vllm.model import PreparedVllmRequest, VllmCore


class VllmPart:
    """Base class of the runners of all parts of a language model. ``half`` is the half that a subclass runs."""

    _halves: ClassVar[dict[str, type["VllmPart"]]] = {}

    def __init_subclass__(cls, *, half: str = "") -> None:
        if half:
            cls._halves[half] = cls

    def __init__(self, core: VllmCore) -> None:
        self._core = core
        self._inside = OccupancyTimer()

    @property
    def serving(self) -> bool:
        """True if there is an engine. A dead one is restarted; until then this runner takes no work."""
        return self._core.serving

    @property
    def keeps_prompts(self) -> bool:
        """See ``Runner``."""
        return self._core.keeps_prompts

    @property
    def busy(self) -> float:
        """Seconds in which the engine had at least one request."""
        return self._inside.seconds

    def switch_role(self, component: str, settings: ExecutorSettings) -> "VllmPart":
        """See ``Runner``: the engine of one half serves the other one as well."""
        make_runner = self._halves.get(component)
        if make_runner is None or not self._core.has_halves:
            raise BadRequest(
                f"vLLM's engine of {self._core.component} was not started for {component}; only prefill and "
                "decode can switch roles"
            )
        return make_runner(self._core)

    async def load(self) -> None:
        await self._core.load()

    async def close(self) -> None:
        await self._core.close()

    def stats(self) -> dict[str, Any]:
        return self._core.stats()


class VllmRunner(VllmPart):
    """A ``Runner`` for LLMs with the inputs and outputs of ``omnibus_llm.runners.thinker.ThinkRunner``."""

    async def run(self, job: Job) -> None:
        core, engine = self._core, self._core.engine
        request = await core.read_request(job)
        spoken_tokens = None if request.order.voice is None else SpokenTokens()
        reply = open_reply(core.reader, request.params, request.thinking, request.limit, spoken_tokens)
        with closing(request.order) as order:
            if request.params.count_only or core.keeps_nothing(request):
                if request.params.count_only and request.params.report_prompt:
                    await send_prompt_tokens(job, core.reader.tokenizer, order.ids)
                close_counted(job, request.counts)
                return
            if request.params.prefill_only:
                await self._prefill(job, request)
                return
            generation = core.build_generation(request, job.seed)
            with self._inside():
                if order.voice is None or spoken_tokens is None:
                    writer = TextWriter(job, reply)
                    await engine.deliver(
                        generation, core.token_consumer(writer.add_steps, request.known, request.counts)
                    )
                else:
                    async with aclosing(engine.generate(generation)) as tokens:
                        compute_rows = partial(core.compute_rows, request, job.seed, tokens)
                        speech = SpeechWriter(job, spoken_tokens, request.limit, compute_rows, order.voice.layout)
                        take = core.token_reader(tokens, order.voice, request.known, request.counts)
                        await send_answer(job, take, reply, speech)
        job.close("text", {"finish_reason": reply.finish, "usage": reply.usage(request.counts)})

    async def _prefill(self, job: Job, request: PreparedVllmRequest) -> None:
        """Compute the prompt, whose blocks the engine keeps."""
        generation = self._core.build_generation(request, job.seed)
        async with aclosing(self._core.engine.generate(generation)) as tokens:
            with self._inside():
                await anext(tokens)
        close_counted(job, request.counts)
