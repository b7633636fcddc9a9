"""Real stages of tiny models: work survives a lost executor, and answers stay the same."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from omnibus_models import tiny
from tests.bench.resume import CASES, lose_executor, start_lab
from tests.nightly import mark_nightly

#: Maximum runs of each stage when the executor of the lost stage dies.
RAN = {
    "vocoder": {"thinker": 1, "talker": 1, "vocoder": 2},
    "language": {"vision": 1, "thinker": 2},
    "decode": {"vision": 1, "prefill": 2, "decode": 2},
    "denoiser": {"text_encoder": 1, "dit": 2, "vae": 2},
    "encoder": {"vision": 14, "thinker": 2},
    "talker": {"thinker": 1, "talker": 2, "vocoder": 2},
    "thinker": {"thinker": 2, "talker": 2, "vocoder": 2},
    "spoken decode": {"prefill": 2, "decode": 2, "talker": 2, "vocoder": 2},
    "all at once": {"thinker": 2, "talker": 2, "vocoder": 2},
}

#: One of each kind of stage, and all together.
_USUAL = ("vocoder", "encoder", "decode", "all at once")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    return {family: tiny.build(family, directory / family) for family in {case.family for case in CASES.values()}}


@pytest.mark.parametrize("name", [*_USUAL, *mark_nightly(*(name for name in CASES if name not in _USUAL))])
async def test_a_fifth_of_what_is_lost_is_computed_again_at_most(
    name: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    async with start_lab(tmp_path, CASES[name], checkpoints[CASES[name].family]) as open_lab:
        loss = await lose_executor(open_lab)

    assert loss.ran.keys() == RAN[name].keys()
    assert all(loss.ran[each] <= RAN[name][each] for each in loss.ran)
    assert loss.work_ratio <= 0.2
