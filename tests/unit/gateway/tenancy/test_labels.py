"""Labels of metrics come from what there is, not from what clients write."""

from omnibus.metrics import exposition
from tests.unit.gateway.house import TEXT, House


async def test_unknown_models_leave_no_label(home: House):
    home.serve(TEXT)

    for number in range(20):
        assert (await home.ask(f"made-up-{number}")).status_code == 404
        for path in ("/v1/embeddings", "/v1/images/generations", "/v1/audio/speech", "/v1/apps/made-up/invoke"):
            await home.http.post(
                path, json={"model": f"made-up-{number}", "input": "x", "prompt": "x", "voice": "alloy"}
            )

    assert b"made-up" not in exposition()
