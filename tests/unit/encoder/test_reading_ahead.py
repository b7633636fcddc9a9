"""Reading a turn of a realtime session while its user speaks. Encoder and thinker are the tiny model's."""

from pathlib import Path
from typing import Any

import pytest

from omnibus.executor.runner import Job
from omnibus_encoder.media_encoder import EncodeRunner, EncodeSettings
from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.runners.thinker import ThinkRunner
from tests.unit.encoder.test_encoding_ahead import RealEars
from tests.unit.gateway.realtime.test_early_answers import start_hearing_gateway
from tests.unit.gateway.realtime.test_turn_detection import send_tones
from tests.unit.gateway.realtime_house import join_deltas, open_realtime_call, sound_of
from tests.unit.sidecar.node import wait_until

pytestmark = pytest.mark.usefixtures("one_thread")


class RealMind:
    """The thinker of the tiny model. ``keeps_prompts`` is the value that it reports to others."""

    def __init__(self, runner: ThinkRunner, *, known: bool) -> None:
        self.runner = runner
        self.keeps_prompts = known

    async def __call__(self, job: Job) -> None:
        await self.runner.run(job)

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens computed so far."""
        return self.runner.batch_counts.tokens


async def run_turn(
    directory: Path, omni: Path, modality: str, *, ahead: bool
) -> tuple[dict[str, Any], str, bytes, int]:
    """Run one turn of 7 s.

    Returns its response, transcript and audio, and the number of prompt tokens computed after the turn ended.
    """
    encoder = EncodeRunner("audio", "qwen2_5_omni", omni, "cpu", "float32", EncodeSettings(cache=16 << 20))
    settings = ThinkSettings(slots=4, context=512, kept_bytes=16 << 20)
    thinker = ThinkRunner(ThinkerCore("qwen2_5_omni", omni, "cpu", "float32", settings))
    await encoder.load()
    await thinker.load()
    ears, mind = RealEars(encoder), RealMind(thinker, known=ahead)
    async with (
        start_hearing_gateway(directory, mind, ears, realtime_early=True) as home,
        open_realtime_call(home) as caller,
    ):
        await caller.update(
            output_modalities=[modality], max_output_tokens=6, seed=3, audio={"input": {"turn_detection": None}}
        )
        await send_tones(caller, (0.5, 0.5))
        for number in range(3):
            start_count = ears.begun
            await send_tones(caller, (0.4 - 0.1 * number, 2.0))  # the loudest first
            await wait_until(lambda known=start_count: ears.begun > known)
            await wait_until(lambda: home.dispatcher.inflight_count == 0)
        await send_tones(caller, (0.3, 0.5))
        before = mind.prefill_tokens
        await caller.send("input_audio_buffer.commit")
        await caller.until("conversation.item.done")
        events = await caller.respond()
        await home.emptied()
        computed_count = mind.prefill_tokens - before
    await encoder.close()
    await thinker.close()
    kind = "response.output_text.delta" if modality == "text" else "response.output_audio_transcript.delta"
    return events[-1]["response"], join_deltas(events, kind), sound_of(events), computed_count


@pytest.mark.numeric
@pytest.mark.parametrize("modality", ["text", "audio"])
async def test_behind_the_end_of_a_turn_only_its_last_window_is_prefilled(tmp_path: Path, omni: Path, modality: str):
    """The answer and the billed usage are the same."""
    read, words, sound, computed_count = await run_turn(tmp_path / "ahead", omni, modality, ahead=True)
    plain, same_words, same_sound, all_of_it = await run_turn(tmp_path / "plain", omni, modality, ahead=False)

    assert (words, sound) == (same_words, same_sound)
    assert words
    details = read["usage"].pop("input_token_details"), plain["usage"].pop("input_token_details")
    assert read["usage"] == plain["usage"]
    assert all_of_it == plain["usage"]["input_tokens"]
    assert details[0]["cached_tokens"] == all_of_it - computed_count
    assert details[1]["cached_tokens"] == 0
    assert details[0]["cached_tokens"] >= 3 * 50  # windows of 2 s, 25 rows a second
    assert computed_count < all_of_it / 3
