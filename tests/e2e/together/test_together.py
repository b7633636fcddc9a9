"""Components in one executor exchange neither messages nor arena blocks.

The answer is the same.
"""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.images.test_images import WISHES, paint_images
from tests.e2e.omni.speech import assert_same_speech, choose_path, make_speech_body, read_spoken, whole_model
from tests.e2e.questions import OMNI_QUESTIONS, VL_QUESTIONS
from tests.e2e.system import VL, System
from tests.e2e.traffic import Edge, TransferTraffic, measure_traffic
from tests.nightly import covering

pytestmark = pytest.mark.e2e

SPEECH = "EV>EA>Th>Ta+V"
SPOKEN = OMNI_QUESTIONS["image and audio"]
PICTURED = VL_QUESTIONS["two images"]


async def send_chat(system: System, body: dict[str, Any], path: str) -> httpx.Response:
    async with system.http() as http:
        answer = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": path})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-omnibus-path"] == path
    return answer


async def test_embeddings_of_an_encoder_beside_its_llm_are_not_moved(together: System):
    body = {"model": VL, "messages": PICTURED.messages, "max_tokens": 8, "temperature": 0}

    transfer = await measure_traffic(together, lambda: send_chat(together, body, "EL"))

    assert transfer == TransferTraffic(set(), granted=2, named=2)  # the files of two images


async def test_codes_of_a_talker_beside_its_vocoder_are_not_moved(together: System):
    transfer = await measure_traffic(together, lambda: send_chat(together, make_speech_body(SPOKEN), SPEECH))

    assert {edge for edge in transfer.edges if edge.producer == "Ta+V"} == set()
    assert {edge for edge in transfer.edges if edge.consumer == "Ta+V"} == {
        Edge("Th", "Ta+V", output) for output in ("prompt", "layout", "rows")
    }
    assert transfer.granted == transfer.named


async def test_what_a_whole_model_thinks_and_talks_is_not_moved(together: System):
    transfer = await measure_traffic(together, lambda: send_chat(together, make_speech_body(SPOKEN), "M"))

    assert transfer.edges == set()
    assert transfer.granted == transfer.named


async def test_what_guides_a_picture_and_its_latents_are_not_moved(together: System):
    async def paint_square() -> httpx.Response:
        return (await paint_images(together, WISHES["square"], "TDV"))[1]

    transfer = await measure_traffic(together, paint_square)

    checkpoints = WISHES["square"]["steps"] - 1  # from which a lost denoiser would resume, after each step but the last
    assert transfer == TransferTraffic(set(), granted=1 + checkpoints, named=1 + checkpoints)  # and the image


@pytest.mark.cell("transformers", "qwen2_5_omni", "tokens")
@pytest.mark.cell("transformers", "qwen2_5_omni", "waveform")
@covering(name=OMNI_QUESTIONS, shape=[SPEECH])
async def test_speech_sounds_like_that_of_the_whole_model(
    together: System, omni_checkpoint: Path, name: str, shape: str
):
    question = OMNI_QUESTIONS[name]

    answer = await send_chat(together, make_speech_body(question), choose_path(shape, question, speech=True))

    assert_same_speech(read_spoken(answer.json()), whole_model(omni_checkpoint, question))
    await together.ledger_is_empty()
