"""One candidate on a running system, until a verdict or a limit."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from omnibus.canary.candidate import Candidate
from omnibus.store import Store
from tests.bench.regressions.cases import RegressionCase
from tests.bench.regressions.checkpoints import copy_checkpoint
from tests.e2e.questions import make_image, make_question
from tests.e2e.system import VL, System, declare_model, start_system

#: Comparisons after which a verdict would have come, and seconds that each case has.
MAX_PAIRS, MAX_SECONDS = 60, 240.0
#: Seconds that a comparison, and a verdict, may take to come after its request.
_PAIR_SECONDS, _VERDICT_SECONDS, _LOOK_SECONDS = 5.0, 4.0, 0.02
_COMMAND_SECONDS = 60.0
#: Runs of each stage in a bisection.
BISECT_RUNS = "4"
#: Requests at a time once a candidate serves users.
AT_ONCE = 4


@dataclass
class CandidateOutcome:
    """Outcome of a candidate: its state and reason, comparisons, and the result of a bisection if bad."""

    case: RegressionCase
    state: str = ""
    reason: str = ""
    pairs: int = 0
    bisected: list[str] = field(default_factory=list)
    stages: list[str] = field(default_factory=list)

    @property
    def is_caught(self) -> bool:
        return self.state == "failed"

    @property
    def is_named(self) -> bool:
        """Return True if most findings named the right stage.

        If outputs differ, a bisection must also have named exactly the right executors.
        """
        counts = Counter(self.stages)
        is_right = bool(counts) and counts.most_common(1)[0][0] == self.case.stage
        return is_right and (
            self.case.shows != "outputs" or self.bisected == [self.case.stage, self.case.executor_option]
        )


@contextmanager
def run_system(directory: Path, checkpoint: Path) -> Iterator[System]:
    """A system with encoder, language model, and a late option for both."""
    model = declare_model("qwen2_5_vl", checkpoint)
    together = {**model["options"]["EL"], "engine": "tests.bench.regressions.engines:late"}
    model["options"] = {**model["options"], "EL": together}
    model["paths"] = [{"options": ["E", "L"], "share": 1}, {"options": ["EL"], "share": 0}]
    with start_system(directory, {VL: model}) as system:
        yield system


class Trial:
    """One case on ``system``, whose model has ``checkpoint``."""

    def __init__(self, system: System, store: Store, http: httpx.AsyncClient, case: RegressionCase, pairs: int) -> None:
        self._system, self._store, self._http = system, store, http
        self._outcome = CandidateOutcome(case)
        self._max_pairs = pairs
        self._sent = 0
        self._ids: list[str] = []  # of requests with an image
        self._id = ""

    async def run(self, checkpoint: Path, directory: Path) -> CandidateOutcome:
        """Start the candidate, send requests, and end it."""
        case, flags = self._outcome.case, list(self._outcome.case.flags)
        if case.edit is not None:
            flags += ["--checkpoint", str(await asyncio.to_thread(copy_checkpoint, checkpoint, directory, case.edit))]
        option = ["--option", case.option] if case.option else []
        share = [] if "--share" in flags else ["--share", "0"]
        record = await self._run_command("canary", "start", VL, *option, *flags, *share, "--mirror", "1", "--json")
        self._id = record["id"]
        try:
            async with asyncio.timeout(MAX_SECONDS):
                await self._wait_for_executors()
                await self._send_until_verdict()
        except TimeoutError:
            self._outcome.reason = f"no verdict in {MAX_SECONDS:g} s"
        await self._note_state()
        await self._stop_candidate()
        return self._outcome

    async def _wait_for_executors(self) -> None:
        """Wait until the candidate's executors serve; requests that end earlier are not compared."""
        replicas, ready = (await self._read_candidate()).replicas, set[str]()
        async with self._system.bus() as bus, contextlib.aclosing(self._system.statuses(bus)) as stream:
            async for status in stream:
                if status.option == self._outcome.case.executor_option and status.state == "ready":
                    ready.add(status.id)
                if len(ready) == replicas:
                    return

    async def _send_until_verdict(self) -> None:
        candidate = await self._read_candidate()
        while candidate.is_active and not self._is_decided(candidate):
            if candidate.state == "canary":
                await asyncio.gather(*(self._send_request() for _ in range(AT_ONCE)))
            else:
                await self._send_and_compare()
            candidate = await self._read_candidate()
        if candidate.is_active:  # the gate may have the last comparisons still before it
            await self._wait_until(self._is_over, _VERDICT_SECONDS)

    def _is_decided(self, candidate: Candidate) -> bool:
        """Return True if no further verdict is expected."""
        serves_users = candidate.state == "canary" or candidate.share
        return candidate.reason.startswith("the gate is green") or (
            self._outcome.pairs >= self._max_pairs and not serves_users
        )

    async def _is_over(self) -> bool:
        return not (await self._read_candidate()).is_active

    async def _read_candidate(self) -> Candidate:
        return (await self._store.candidates())[VL]

    @property
    def _is_text_only(self) -> bool:
        """Return True if the last request had no image."""
        return self._sent % 4 == 0

    async def _send_request(self) -> None:
        """Send the next request; all differ."""
        self._sent += 1
        number = self._sent
        media = [] if self._is_text_only else [make_image(number, 60 + number % 3 * 30, 60)]
        body = {
            "model": VL,
            "messages": make_question(*media, f"what is number {number} of {7 * number}, and why?").messages,
            "max_tokens": 24,
            "ignore_eos": True,
            "temperature": 0,
        }
        answer = await self._http.post("/v1/chat/completions", json=body)
        if media:
            self._ids.append(answer.headers["x-request-id"])

    async def _send_and_compare(self) -> None:
        """Send a request, await its comparison, and bisect the first bad one."""
        before = self._outcome.pairs
        await self._send_request()
        if self._is_text_only and self._outcome.case.option == "E":
            return  # the candidate has no part in it

        async def is_compared() -> bool:
            self._outcome.pairs = (await self._store.counts(self._id)).get("pairs", 0)
            return self._outcome.pairs > before

        await self._wait_until(is_compared, _PAIR_SECONDS)
        findings = await self._store.findings(self._id)
        bad = [each for each in findings if each["outcome"] != "slower"]
        if bad and not self._outcome.bisected and self._outcome.case.stage:
            self._outcome.bisected = await self._bisect_request(bad[0]["id"])

    async def _bisect_request(self, id: str) -> list[str]:
        """Return the stage and the options of executors that a bisection names.

        The bisection is of request ``id``. If it finds nothing, it is tried again after another request.
        """
        earlier = next((each for each in reversed(self._ids) if each != id), "")
        more: tuple[str, ...]
        for more in ((), ("--after", earlier)) if earlier else ((),):
            finding = await self._run_command("bisect", id, "--runs", BISECT_RUNS, *more, "--json")
            if finding["stage"]:
                break
        return [finding["stage"], *sorted({each["option"] for each in finding["responsible"]})]

    async def _wait_until(self, true: Callable[[], Awaitable[bool]], seconds: float) -> None:
        ends = time.monotonic() + seconds
        while not await true() and time.monotonic() < ends:
            await asyncio.sleep(_LOOK_SECONDS)

    async def _note_state(self) -> None:
        candidate, findings = await self._read_candidate(), await self._store.findings(self._id)
        self._outcome.state = candidate.state
        self._outcome.reason = candidate.reason or self._outcome.reason
        is_time = self._outcome.case.shows == "time"
        self._outcome.stages = [each["stage"] for each in findings if (each["outcome"] == "slower") == is_time]

    async def _stop_candidate(self) -> None:
        if (await self._read_candidate()).is_active:
            await self._run_command("canary", "abort", VL, "--json")

    async def _run_command(self, *arguments: str) -> dict[str, Any]:
        process = self._system.command(*arguments)
        output, _ = await asyncio.to_thread(process.communicate, timeout=_COMMAND_SECONDS)
        return dict(json.loads(output))


@asynccontextmanager
async def start_trials(
    system: System, checkpoint: Path, directory: Path, pairs: int = MAX_PAIRS
) -> AsyncIterator[Callable[[RegressionCase], Awaitable[CandidateOutcome]]]:
    """Yield a function that tries one case on ``system``.

    Copies of ``checkpoint`` are in ``directory``. The function compares each candidate at most ``pairs`` times, unless
    the candidate must serve users.
    """
    async with system.store() as store, system.http() as http:
        count = 0

        async def run_case(case: RegressionCase) -> CandidateOutcome:
            nonlocal count
            count += 1
            return await Trial(system, store, http, case, pairs).run(checkpoint, directory / f"changed-{count}")

        yield run_case
