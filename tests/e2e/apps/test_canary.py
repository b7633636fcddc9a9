"""A new app version serves only if it repeats recorded answers."""

from pathlib import Path
from textwrap import dedent

import pytest

from tests.e2e.apps.estate import AppSystem

pytestmark = pytest.mark.e2e

#: Asks the tiny model about what it is sent.
ABOUT = """
    from omnibus.task import MLLM, ChatInput, Think

    TASK = MLLM(encoders={}, thinker=Think(model="qwen2.5-vl-tiny", component="thinker"))


    async def serve(request: str) -> dict:
        asked = ChatInput.of("{prompt}" + request, max_tokens=8, temperature=0.0)
        found = await (await TASK(asked)).text
        {then}
        return {"about": request, "said": found}
"""


async def list_invocations(twins: AppSystem, app: str) -> list[str]:
    response = await twins.ask("GET", f"/v1/invocations?app={app}&limit=100")
    assert response.status_code == 200, response.text
    return [each["id"] for each in response.json()["data"]]


async def test_a_new_version_serves_once_it_answers_as_before(twin_models: AppSystem, tmp_path: Path):
    file = tmp_path / "about.py"

    def write_app(prompt: str = "Tell me of ", then: str = "pass") -> None:
        file.write_text(dedent(ABOUT).replace("{prompt}", prompt).replace("{then}", then))

    def update_app() -> tuple[int, str]:
        return twin_models.run_cli("app", "update", "about", "--upload", str(file), "--canary", "3")

    write_app()
    assert twin_models.run_cli("app", "register", "--upload", str(file))[0] == 0
    try:
        for word in ("cats", "dogs", "boats", "trees"):
            await twin_models.invoke_json("about", word)
        before = await list_invocations(twin_models, "about")
        write_app(prompt="Sing of ")
        other = update_app()
        write_app(then="raise LookupError(request)")
        broken_update = update_app()
        old_app = await twin_models.show("about")
        write_app(then="assert found is not None")
        good = update_app()
        new_app = await twin_models.show("about")
        after = await list_invocations(twin_models, "about")
    finally:
        await twin_models.unregister("about")

    assert (other[0], broken_update[0], good[0]) == (1, 1, 0), (other, broken_update, good)
    assert "3 of 3 recorded calls were not answered as before" in other[1]
    assert other[1].count("differed  thinker.text: text is similar by") == 3
    assert broken_update[1].count("failed    app_failed: ") == 3
    assert (old_app or {})["version"] == 1
    assert "about is updated, version 2" in good[1]
    assert "3 recorded calls were answered as before" in good[1]
    assert (new_app or {})["version"] == 2
    assert len(before) == 4
    assert after == before
