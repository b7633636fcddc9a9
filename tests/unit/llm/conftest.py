"""Tiny checkpoints, runners on them, and the plain reference loop."""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
import torch
from transformers.cache_utils import DynamicCache

from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.runners.prefill_decode import DecodeRunner, PrefillRunner
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import tiny
from omnibus_models.contract import PrefillInputs, Thinker
from omnibus_models.families import load_family
from tests.close import choose_clearly
from tests.unit.llm.halves import Halves, make_core

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def vl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2_5_vl", tmp_path_factory.mktemp("models") / "vl")


@pytest.fixture(scope="session")
def thinker(vl: Path) -> Thinker:
    return load_family("qwen2_5_vl").load("thinker", vl)


@pytest.fixture
async def runner(vl: Path) -> AsyncIterator[ThinkRunner]:
    """A runner of five slots, so that requests have to wait."""
    think_runner = ThinkRunner(
        ThinkerCore("qwen2_5_vl", vl, "cpu", "float32", ThinkSettings(slots=5, context=512, share=64))
    )
    await think_runner.load()
    yield think_runner
    await think_runner.close()


@torch.inference_mode()
def decode_greedily(decoder: Thinker, prefill: PrefillInputs, count: int, ends: Iterable[int] = ()) -> list[int]:
    """Decode one request alone, in the obvious way: prefill, then one token after the other."""
    cache = DynamicCache()
    hidden = decoder.forward(prefill.inputs[None], prefill.positions[:, None], cache, None)
    ids = [int(choose_clearly(decoder.logits(hidden[:, -1])))]
    while len(ids) < count and ids[-1] not in set(ends):
        position = cache.get_seq_length() + prefill.delta
        positions = torch.full((decoder.axes, 1, 1), position)
        hidden = decoder.forward(decoder.embed(torch.tensor([[ids[-1]]])), positions, cache, None)
        ids.append(int(choose_clearly(decoder.logits(hidden[:, -1]))))
    return ids


@pytest.fixture(scope="session")
def omni(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen2_5_omni", tmp_path_factory.mktemp("models") / "omni")


@pytest.fixture
async def omni_runner(omni: Path) -> AsyncIterator[ThinkRunner]:
    """A thinker with speech output."""
    think_runner = ThinkRunner(ThinkerCore("qwen2_5_omni", omni, "cpu", "float32", ThinkSettings(slots=4, context=512)))
    await think_runner.load()
    yield think_runner
    await think_runner.close()


@pytest.fixture(params=["apart", "together"])
async def halves(request: pytest.FixtureRequest, vl: Path) -> AsyncIterator[Halves]:
    near = request.param == "together"
    first = make_core(vl, share=64)
    runners = Halves(PrefillRunner(first), DecodeRunner(first if near else make_core(vl)), near)
    await runners.prefill.load()
    await runners.decode.load()
    yield runners
    await runners.prefill.close()
    await runners.decode.close()
