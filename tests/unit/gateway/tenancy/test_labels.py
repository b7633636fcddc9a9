"""Labels of metrics come from known names, never from client input."""

from pathlib import Path

from omnibus.metrics import render_exposition
from tests.unit.gateway.auth.test_middleware import start_gated_gateway
from tests.unit.gateway.house import TEXT, ToyGateway, read_chat_answer


async def test_unknown_models_leave_no_label(home: ToyGateway):
    home.serve(TEXT)

    for number in range(20):
        assert (await home.ask(f"made-up-{number}")).status_code == 404
        for path in ("/v1/embeddings", "/v1/images/generations", "/v1/audio/speech", "/v1/apps/made-up/invoke"):
            await home.http.post(
                path, json={"model": f"made-up-{number}", "input": "x", "prompt": "x", "voice": "alloy"}
            )

    assert b"made-up" not in render_exposition()


async def test_keys_leave_no_label_and_tenants_do(tmp_path: Path):
    async with start_gated_gateway(tmp_path) as gate:
        await gate.home.all_of(TEXT)
        read_chat_answer(await gate.ask("b"))

        for number in range(20):
            assert (await gate.ask(f"made-up-{number}")).status_code == 401
            assert (await gate.ask("b", model=f"made-up-{number}")).status_code == 404

        exposition = render_exposition()
        assert b"made-up" not in exposition
        assert b'omnibus_tenant_gpu_seconds_total{tenant="b"}' in exposition
