"""Share of a lost executor's work that is computed again: work, not time.

    python -m tests.bench.resume

A whole gateway runs with executors of tiny checkpoints in this process. One of them is lost during a request, and
another one finishes it. The benchmark counts steps of decoders and denoisers, prefills, codes of a talker, blocks of
codes of a vocoder, and encoded media.

``lost`` is all work for the request when the executor was lost. A request that reruns as a whole repeats all of it.
``recomputed`` is the work in excess of an undisturbed run. Answers must be equal.
"""

import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import torch

from omnibus.executor.runner import Job, Runner
from omnibus.families import catalog
from omnibus_encoder.media_encoder import EncodeRunner, EncodeSettings
from omnibus_encoder.text_engines import TextEncodeRunner
from omnibus_generator.denoiser import DenoiseRunner, DenoiseSettings
from omnibus_generator.vae_decoder import DecodeImageRunner, LatentDecodeSettings
from omnibus_generator.vocoder import VocodeRunner, VocodeSettings
from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from omnibus_llm.runners.talker import TalkRunner, TalkSettings
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import tiny
from tests.unit.gateway.deaths import Ward
from tests.unit.gateway.house import ToyGateway, make_image_part, make_text_part, start_toy_gateway
from tests.unit.gateway.samples import make_sample_picture
from tests.unit.sidecar.node import wait_until

PICTURES = 12
TOKENS, CODES, STEPS = 100, 60, 20
#: Of an answer that is spoken at length.
LONG_CODES, LONG_SPEECH = 120, 100


class Lost(NamedTuple):
    """Work at the executor's loss, recomputed work, and runs of each stage."""

    lost: float
    recomputed: float
    ran: dict[str, int]

    @property
    def work_ratio(self) -> float:
        return self.recomputed / self.lost


class ResumeCase(NamedTuple):
    """One case: ``options`` by name with their components, and a loss.

    ``victim`` is the component whose executor is lost at ``when`` units of ``counts``.
    """

    family: str
    declared: Callable[[], dict[str, Any]]
    options: dict[str, tuple[str, ...]]
    victim: str
    counts: str
    when: int
    asked: dict[str, Any]


def _make_speech(tokens: int = 24, codes: int = CODES) -> dict[str, Any]:
    audio = {"voice": "Chelsie", "format": "pcm16", "max_tokens": codes}
    audio_options = {"modalities": ["text", "audio"], "audio": audio, "max_tokens": tokens}
    return {"content": "the quick brown fox", **audio_options}


def _make_look(pictures: int = 1) -> list[dict[str, Any]]:
    return [
        make_text_part("look"),
        *(make_image_part(make_sample_picture("PNG", (40 + 28 * number, 56))) for number in range(pictures)),
    ]


def _declare_usual(family: str) -> Callable[[], dict[str, Any]]:
    return lambda: catalog.model_declaration(family, "")


_OMNI = {"Th": ("thinker",), "Ta": ("talker",), "V": ("vocoder",)}
_SPOKEN_HALVES = {"P": ("prefill",), "D": ("decode",), "Ta": ("talker",), "V": ("vocoder",)}
_WHOLE = {"M": ("thinker", "talker", "vocoder")}
_VL = {"E": ("vision",), "L": ("thinker",)}
_HALVES = {"E": ("vision",), "P": ("prefill",), "D": ("decode",)}
_STUDIO = {"T": ("text_encoder",), "D": ("dit",), "V": ("vae",)}
_LONG = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
_AT_LENGTH = {**_make_speech(LONG_SPEECH, LONG_CODES), "temperature": 0, "ignore_eos": True}


def _declare_split(family: str, path: str) -> Callable[[], dict[str, Any]]:
    return lambda: catalog.split_declaration(family, "", path)


def _declare_together() -> dict[str, Any]:
    return {**catalog.model_declaration("qwen2_5_omni", ""), "paths": [{"options": ["M"], "share": 1}]}


CASES = {
    "vocoder": ResumeCase(
        "qwen2_5_omni", _declare_usual("qwen2_5_omni"), _OMNI, "vocoder", "vocoder", 2, _make_speech()
    ),
    "language": ResumeCase(
        "qwen2_5_vl", _declare_usual("qwen2_5_vl"), _VL, "thinker", "thinker", 60, {"content": _make_look(), **_LONG}
    ),
    "decode": ResumeCase(
        "qwen2_5_vl",
        _declare_split("qwen2_5_vl", "E>P>D"),
        _HALVES,
        "decode",
        "decode",
        60,
        {"content": _make_look(), **_LONG},
    ),
    "talker": ResumeCase("qwen2_5_omni", _declare_usual("qwen2_5_omni"), _OMNI, "talker", "talker", 90, _AT_LENGTH),
    "thinker": ResumeCase("qwen2_5_omni", _declare_usual("qwen2_5_omni"), _OMNI, "thinker", "thinker", 70, _AT_LENGTH),
    "spoken decode": ResumeCase(
        "qwen2_5_omni",
        _declare_split("qwen2_5_omni", "EV>EA>P>D>Ta>V"),
        _SPOKEN_HALVES,
        "decode",
        "decode",
        70,
        _AT_LENGTH,
    ),
    "all at once": ResumeCase("qwen2_5_omni", _declare_together, _WHOLE, "talker", "talker", 90, _AT_LENGTH),
    "denoiser": ResumeCase("qwen_image", _declare_usual("qwen_image"), _STUDIO, "dit", "dit", 15, {}),
    "encoder": ResumeCase(
        "qwen2_5_vl",
        _declare_usual("qwen2_5_vl"),
        _VL,
        "vision",
        "vision",
        PICTURES,
        {"content": _make_look(PICTURES), "max_tokens": 8},
    ),
}


class Lab:
    """The house of one case, and the work of its executors."""

    home: ToyGateway
    ward: Ward

    def __init__(self, case: ResumeCase, checkpoint: Path) -> None:
        self.case = case
        self.work: Counter[str] = Counter()
        self.runners: list[Runner] = []
        self.slow = 0.0  # seconds that each unit of the victim takes more
        self._checkpoint = checkpoint
        self._works: dict[str, dict[str, Callable[[Job], Any]]] = {}  # by executor and component

    async def load(self) -> None:
        """Create the works: two executors for the lost option, one for others."""
        for option, components in self.case.options.items():
            for number in range(1 + (self.case.victim in components)):
                self._works[f"{option}-{number}"] = {each: await self._make_work(each) for each in components}

    async def open(self, home: ToyGateway) -> None:
        """Start the executors in ``home``."""
        self.home, self.ward = home, Ward(home)
        self.home.serve(**{"lab": self.case.declared()})
        tasks = {**catalog.FAMILIES[self.case.family]["tasks"], **catalog.SPLIT}
        for id, works in self._works.items():
            option = id.partition("-")[0]
            await home.place.executor(id, works, option, 64, "lab", lambda each: f"{tasks[each]}-lab-{each}")
            await wait_until(lambda id=id: home.members.get(id) is not None)

    async def close(self) -> None:
        for runner in self.runners:
            await runner.close()

    async def _make_work(self, component: str) -> Callable[[Job], Any]:
        runner = self._make_runner(component)
        await runner.load()
        self.runners.append(runner)
        self._count_work(component, runner)

        async def run_job(job: Job) -> None:
            self.ward.began[component] += 1
            await runner.run(job)

        return run_job

    def _make_runner(self, component: str) -> Any:
        where = (self.case.family, self._checkpoint, "cpu", "float32")
        core = ThinkerCore(*where, ThinkSettings(slots=4, context=1024))
        runners: dict[str, Callable[[], Any]] = {
            "thinker": lambda: ThinkRunner(core),
            "prefill": lambda: PrefillRunner(core),
            "decode": lambda: DecodeRunner(core),
            "talker": lambda: TalkRunner(component, *where, TalkSettings()),
            "vocoder": lambda: VocodeRunner(component, *where, VocodeSettings(codes=12)),
            "vision": lambda: EncodeRunner(component, *where, EncodeSettings(items=1)),
            "text_encoder": lambda: TextEncodeRunner(component, *where, EncodeSettings()),
            "dit": lambda: DenoiseRunner(component, *where, DenoiseSettings()),
            "vae": lambda: DecodeImageRunner(component, *where, LatentDecodeSettings()),
        }
        return runners[component]()

    def _count_work(self, component: str, runner: Any) -> None:
        """Count each unit of work where it is computed."""
        if component in ("thinker", "prefill", "decode"):
            steps = runner._core.engine._steps
            self._count_calls(component, steps, "_extend_prefill")
            self._count_calls(component, steps, "_decode_step")
        elif component == "talker":
            self._count_calls(component, runner.engine._steps, "_extend_prefill")
            self._count_calls(component, runner.engine._steps, "_decode_step")
        elif component == "vision":
            self._count_calls(component, runner.model, "encode")
        elif component == "dit":
            self._count_calls(component, runner.model, "step")
        elif component == "vocoder":
            open_model = runner.model.open

            def open_counted(*args: Any) -> Any:
                vocoding = open_model(*args)
                self._count_calls(component, vocoding, "_denoise_blocks", lambda first, end: end - first)
                return vocoding

            runner.model.open = open_counted

    def _count_calls(self, component: str, of: Any, name: str, size: Callable[..., int] = lambda *_: 1) -> None:
        function = getattr(of, name)

        def count_call(*args: Any) -> Any:
            result = function(*args)
            self.work[component] += size(*args)
            if component == self.case.victim and self.slow:
                time.sleep(self.slow)  # in a compute thread: records arrive while it computes
            return result

        setattr(of, name, count_call)

    async def ask(self) -> httpx.Response:
        request = self.case.asked
        if self.case.victim == "dit":
            wish = {"model": "lab", "prompt": "a red boat", "size": "64x64", "seed": 7, "steps": STEPS}
            return await self.home.http.post("/v1/images/generations", json=wish)
        return await self.home.ask(model="lab", seed=5, **request)


def read_answer(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    body = response.json()
    if "data" in body:
        return body["data"]
    message = body["choices"][0]["message"]
    return message["content"], (message.get("audio") or {}).get("data")


@asynccontextmanager
async def start_lab(directory: Path, case: ResumeCase, checkpoint: Path) -> AsyncIterator[Lab]:
    new_lab = Lab(case, checkpoint)
    try:
        await new_lab.load()
        async with start_toy_gateway(directory, within=240.0, deadline=100.0) as home:
            await new_lab.open(home)
            yield new_lab
    finally:
        await new_lab.close()


async def wait_for_encoding(lab: Lab) -> str:
    """Wait until all images but two are reported as encoded; return the encoder of the last one."""
    [running] = lab.home.dispatcher._running.values()
    await wait_until(lambda: len(running.hops) >= PICTURES - 2)
    return running.executors[max(set(range(PICTURES)) - running.hops.keys())]


async def lose_executor(lab: Lab) -> Lost:
    """Send an undisturbed request, then one whose executor is lost midway."""
    whole = read_answer(await lab.ask())
    await lab.home.emptied()
    whole_work, lab.work = lab.work, Counter()
    lab.ward.began.clear()
    lab.slow = 0.02 if lab.case.victim != "vision" else 0.3
    asking = asyncio.create_task(lab.ask())
    executor = await lab.ward.running(lab.case.victim)
    await wait_until(lambda: lab.work[lab.case.counts] >= lab.case.when or asking.done())
    if lab.case.victim == "vision":
        executor = await wait_for_encoding(lab)
    assert not asking.done(), f"over before it was lost: {lab.work}"
    lost_work = sum(lab.work.values())
    await lab.ward.kill(executor)
    lab.slow = 0.0
    result = read_answer(await asking)
    assert result == whole, "the answer is another one"
    await lab.home.emptied()
    extra_work = sum(lab.work[each] - whole_work[each] for each in lab.work)
    return Lost(lost_work, extra_work, dict(lab.ward.began))


async def measure_resume() -> dict[str, float]:
    ratios = {}
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        checkpoints = {
            family: tiny.build(family, Path(directory) / family) for family in {c.family for c in CASES.values()}
        }
        for name, case in CASES.items():
            (Path(directory) / name).mkdir()
            async with start_lab(Path(directory) / name, case, checkpoints[case.family]) as new_lab:
                ratios[f"resume.recomputed_over_lost.{name}"] = round((await lose_executor(new_lab)).work_ratio, 3)
    return ratios


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure_resume())))
