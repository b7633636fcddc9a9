"""Replays of videos compare their frames and their audio."""

import json

from omnibus.bus import subjects
from tests.unit.gateway.videos.studio import Studio, request_video, wait_for_video

PATIENCE = 20.0  # seconds


async def test_a_replay_of_a_video_compares_its_frames_and_its_audio(place: Studio):
    home = place.first
    await wait_for_video(home, (await request_video(home, seed=120))["id"], status="completed")
    [record] = (await home.http.get("/v1/invocations?app=videos")).json()["data"]
    await home.ended(record["id"])
    body = (await home.bus.read_records(f"{subjects.ROOT}.inv.*.{record['id']}"))[0].data

    *_, reply = [json.loads(part) async for part in home.bus.request_stream(subjects.REPLAY, body, PATIENCE)]

    assert reply["identical"] is True
    assert reply["compared"] == [
        "dit.progress (4 values)",
        "audio_vae.audio (3000 samples of 2 channels)",
        "vae.frames (9 frames of 32 x 64 pixels)",
    ]
    await home.emptied()
