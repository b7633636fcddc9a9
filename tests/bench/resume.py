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
from omnibus_encoder.text_encoder import TextEncodeRunner
from omnibus_generator.denoiser import DenoiseRunner, DenoiseSettings
from omnibus_generator.vae_decoder import DecodeImageRunner, LatentDecodeSettings
from omnibus_generator.vocoder import VocodeRunner, VocodeSettings
from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from omnibus_llm.runners.talker import TalkRunner, TalkSettings
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import tiny
from tests.unit.gateway.deaths import Ward
from tests.unit.gateway.house import House, house, image, text
from tests.unit.gateway.samples import picture
from tests.unit.sidecar.node import until

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
    def ratio(self) -> float:
        return self.recomputed / self.lost


class Case(NamedTuple):
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


def _speech(tokens: int = 24, codes: int = CODES) -> dict[str, Any]:
    audio = {"voice": "Chelsie", "format": "pcm16", "max_tokens": codes}
    spoken = {"modalities": ["text", "audio"], "audio": audio, "max_tokens": tokens}
    return {"content": "the quick brown fox", **spoken}


def _look(pictures: int = 1) -> list[dict[str, Any]]:
    return [text("look"), *(image(picture("PNG", (40 + 28 * number, 56))) for number in range(pictures))]


def _usual(family: str) -> Callable[[], dict[str, Any]]:
    return lambda: catalog.model_declaration(family, "")


_OMNI = {"Th": ("thinker",), "Ta": ("talker",), "V": ("vocoder",)}
_SPOKEN_HALVES = {"P": ("prefill",), "D": ("decode",), "Ta": ("talker",), "V": ("vocoder",)}
_WHOLE = {"M": ("thinker", "talker", "vocoder")}
_VL = {"E": ("vision",), "L": ("thinker",)}
_HALVES = {"E": ("vision",), "P": ("prefill",), "D": ("decode",)}
_STUDIO = {"T": ("text_encoder",), "D": ("dit",), "V": ("vae",)}
_LONG = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
_AT_LENGTH = {**_speech(LONG_SPEECH, LONG_CODES), "temperature": 0, "ignore_eos": True}


def _split(family: str, path: str) -> Callable[[], dict[str, Any]]:
    return lambda: catalog.split_declaration(family, "", path)


def _together() -> dict[str, Any]:
    return {**catalog.model_declaration("qwen2_5_omni", ""), "paths": [{"options": ["M"], "share": 1}]}


CASES = {
    "vocoder": Case("qwen2_5_omni", _usual("qwen2_5_omni"), _OMNI, "vocoder", "vocoder", 2, _speech()),
    "language": Case("qwen2_5_vl", _usual("qwen2_5_vl"), _VL, "thinker", "thinker", 60, {"content": _look(), **_LONG}),
    "decode": Case(
        "qwen2_5_vl", _split("qwen2_5_vl", "E>P>D"), _HALVES, "decode", "decode", 60, {"content": _look(), **_LONG}
    ),
    "talker": Case("qwen2_5_omni", _usual("qwen2_5_omni"), _OMNI, "talker", "talker", 90, _AT_LENGTH),
    "thinker": Case("qwen2_5_omni", _usual("qwen2_5_omni"), _OMNI, "thinker", "thinker", 70, _AT_LENGTH),
    "spoken decode": Case(
        "qwen2_5_omni",
        _split("qwen2_5_omni", "EV>EA>P>D>Ta>V"),
        _SPOKEN_HALVES,
        "decode",
        "decode",
        70,
        _AT_LENGTH,
    ),
    "all at once": Case("qwen2_5_omni", _together, _WHOLE, "talker", "talker", 90, _AT_LENGTH),
    "denoiser": Case("qwen_image", _usual("qwen_image"), _STUDIO, "dit", "dit", 15, {}),
    "encoder": Case(
        "qwen2_5_vl",
        _usual("qwen2_5_vl"),
        _VL,
        "vision",
        "vision",
        PICTURES,
        {"content": _look(PICTURES), "max_tokens": 8},
    ),
}


class Lab:
    """The house of one case, and the work of its executors."""

    home: House
    ward: Ward

    def __init__(self, case: Case, checkpoint: Path) -> None:
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
                self._works[f"{option}-{number}"] = {each: await self._work(each) for each in components}

    async def open(self, home: House) -> None:
        """Start the executors in ``home``."""
        self.home, self.ward = home, Ward(home)
        self.home.serve(**{"lab": self.case.declared()})
        tasks = {**catalog.FAMILIES[self.case.family]["tasks"], **catalog.SPLIT}
        for id, works in self._works.items():
            option = id.partition("-")[0]
            await home.place.executor(id, works, option, 64, "lab", lambda each: f"{tasks[each]}-lab-{each}")
            await until(lambda id=id: home.members.get(id) is not None)

    async def close(self) -> None:
        for runner in self.runners:
            await runner.close()

    async def _work(self, component: str) -> Callable[[Job], Any]:
        runner = self._runner(component)
        await runner.load()
        self.runners.append(runner)
        self._count(component, runner)

        async def run(job: Job) -> None:
            self.ward.began[component] += 1
            await runner.run(job)

        return run

    def _runner(self, component: str) -> Any:
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

    def _count(self, component: str, runner: Any) -> None:
        """Count each unit of work where it is computed."""
        if component in ("thinker", "prefill", "decode"):
            steps = runner._core.engine._steps
            self._counted(component, steps, "_extend_prefill")
            self._counted(component, steps, "_decode_step")
        elif component == "talker":
            self._counted(component, runner.engine._steps, "_extend_prefill")
            self._counted(component, runner.engine._steps, "_decode_step")
        elif component == "vision":
            self._counted(component, runner.model, "encode")
        elif component == "dit":
            self._counted(component, runner.model, "step")
        elif component == "vocoder":
            made = runner.model.open

            def opened(*args: Any) -> Any:
                vocoding = made(*args)
                self._counted(component, vocoding, "_denoise_blocks", lambda first, end: end - first)
                return vocoding

            runner.model.open = opened

    def _counted(self, component: str, of: Any, name: str, size: Callable[..., int] = lambda *_: 1) -> None:
        function = getattr(of, name)

        def counting(*args: Any) -> Any:
            found = function(*args)
            self.work[component] += size(*args)
            if component == self.case.victim and self.slow:
                time.sleep(self.slow)  # in a compute thread: records arrive while it computes
            return found

        setattr(of, name, counting)

    async def ask(self) -> httpx.Response:
        asked = self.case.asked
        if self.case.victim == "dit":
            wish = {"model": "lab", "prompt": "a red boat", "size": "64x64", "seed": 7, "steps": STEPS}
            return await self.home.http.post("/v1/images/generations", json=wish)
        return await self.home.ask(model="lab", seed=5, **asked)


def answer(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    body = response.json()
    if "data" in body:
        return body["data"]
    message = body["choices"][0]["message"]
    return message["content"], (message.get("audio") or {}).get("data")


@asynccontextmanager
async def lab(directory: Path, case: Case, checkpoint: Path) -> AsyncIterator[Lab]:
    made = Lab(case, checkpoint)
    try:
        await made.load()
        async with house(directory, within=240.0, deadline=100.0) as home:
            await made.open(home)
            yield made
    finally:
        await made.close()


async def encoding(made: Lab) -> str:
    """Wait until all images but two are reported as encoded; return the encoder of the last one."""
    [running] = made.home.dispatcher._running.values()
    await until(lambda: len(running.hops) >= PICTURES - 2)
    return running.executors[max(set(range(PICTURES)) - running.hops.keys())]


async def lose(made: Lab) -> Lost:
    """Send an undisturbed request, then one whose executor is lost midway."""
    whole = answer(await made.ask())
    await made.home.emptied()
    needed, made.work = made.work, Counter()
    made.ward.began.clear()
    made.slow = 0.02 if made.case.victim != "vision" else 0.3
    asking = asyncio.create_task(made.ask())
    executor = await made.ward.running(made.case.victim)
    await until(lambda: made.work[made.case.counts] >= made.case.when or asking.done())
    if made.case.victim == "vision":
        executor = await encoding(made)
    assert not asking.done(), f"over before it was lost: {made.work}"
    lost = sum(made.work.values())
    await made.ward.kill(executor)
    made.slow = 0.0
    found = answer(await asking)
    assert found == whole, "the answer is another one"
    await made.home.emptied()
    recomputed = sum(made.work[each] - needed[each] for each in made.work)
    return Lost(lost, recomputed, dict(made.ward.began))


async def measure() -> dict[str, float]:
    found = {}
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        checkpoints = {
            family: tiny.build(family, Path(directory) / family) for family in {c.family for c in CASES.values()}
        }
        for name, case in CASES.items():
            (Path(directory) / name).mkdir()
            async with lab(Path(directory) / name, case, checkpoints[case.family]) as made:
                found[f"resume.recomputed_over_lost.{name}"] = round((await lose(made)).ratio, 3)
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure())))
