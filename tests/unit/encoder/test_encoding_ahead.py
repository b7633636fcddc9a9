"""Encoding a turn of a realtime session while its user speaks. The encoder is the tiny model's."""

from pathlib import Path

from omnibus.executor.runner import Job
from omnibus.families import catalog
from omnibus_encoder.media_encoder import EncodeRunner, EncodeSettings
from omnibus_models.families import load_family
from tests.unit.encoder.test_known_parts import cut_wav as until_second
from tests.unit.encoder.test_known_parts import make_speech
from tests.unit.gateway.realtime.test_early_answers import CountingThinker, start_hearing_gateway
from tests.unit.gateway.realtime.test_turn_detection import send_tones
from tests.unit.gateway.realtime_house import open_realtime_call
from tests.unit.sidecar.node import wait_until


class RealEars:
    """The audio encoder of the tiny model; toy models answer with facts about its rows."""

    keeps = True

    def __init__(self, runner: EncodeRunner) -> None:
        self.runner = runner
        self.begun = 0

    async def __call__(self, job: Job) -> None:
        self.begun += 1
        await self.runner.run(job)


async def test_the_encoder_of_a_model_encodes_each_window_of_a_turn_once(tmp_path: Path, omni: Path):
    runner = EncodeRunner("audio", "qwen2_5_omni", omni, "cpu", "float32", EncodeSettings(cache=16 << 20))
    await runner.load()
    ears = RealEars(runner)
    async with start_hearing_gateway(tmp_path, CountingThinker(), ears) as home, open_realtime_call(home) as caller:
        await send_tones(caller, (0, 0.6), (0.5, 0.5))
        for number in range(3):
            start_count = ears.begun
            await send_tones(caller, (0.4 - 0.1 * number, 2.0))  # windows that differ, the loudest first
            await wait_until(lambda known=start_count: ears.begun > known)
            await wait_until(lambda: home.dispatcher.inflight_count == 0)
        await send_tones(caller, (0, 0.8))
        events = await caller.until("response.done")
        await home.emptied()
    stats = runner.stats()
    await runner.close()

    assert events[-1]["response"]["status"] == "completed"
    assert stats["reused_parts"] == 1 + 2 + 3  # of 2.1, 4.1, 6.1 and about 7 s, in windows of 2 s


def test_the_window_that_gateways_know_of_is_the_encoders(omni: Path):
    encoder = load_family("qwen2_5_omni").load("audio", omni)
    parts = encoder.split_item(encoder.prepare(memoryview(until_second(make_speech(), 5.0)), "audio"))

    seconds = parts[0].meta["audio_len"] / 100  # frames are 10 ms
    assert seconds == catalog.find_audio_window("qwen2_5_omni")
