"""LangChain's standard tests of chat models, unchanged, against a running system.

The tests use ``ChatOpenAI``. ``assistant`` answers by a script (``tests/clients/answers.json``); it serves tests whose
model must follow instructions. The trained ``qwen2.5-omni-world`` sees and hears. Tests that would download an image or
audio get ``seen.png`` and ``heard.wav``. ``docs/clients.md`` lists the omitted tests with reasons.
"""

from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

ASSISTANT, WORLD = "assistant", "qwen2.5-omni-world"
#: Tests that the trained model is too small for; the scripted one passes them.
GREETED = {
    "test_invoke",
    "test_ainvoke",
    "test_stream",
    "test_astream",
    "test_stream_events_v3",
    "test_astream_events_v3",
    "test_batch",
    "test_abatch",
    "test_conversation",
    "test_double_messages_conversation",
    "test_message_with_name",
}


@pytest.fixture(autouse=True)
def downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve the tests' downloads from local files."""

    def get_file(url: str, **_: Any) -> httpx.Response:
        return httpx.Response(200, content=Path("heard.wav" if url.endswith(".wav") else "seen.png").read_bytes())

    monkeypatch.setattr(httpx, "get", get_file)


class Chats(ChatModelIntegrationTests):
    """Properties of both models."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def supports_pdf_inputs(self) -> bool:
        return False  # no model here reads documents

    @property
    def supports_anthropic_inputs(self) -> bool:
        return False  # parts of another API


class TestScriptedChats(Chats):
    """A model that decides to call tools, and answers in JSON."""

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": ASSISTANT, "stream_usage": True}

    @property
    def model_override_value(self) -> str:
        return WORLD

    @property
    def supports_json_mode(self) -> bool:
        return True


class TestTrainedChats(Chats):
    """A model with image and audio inputs, too small to call tools.

    It cannot write long JSON either. ``GREETED`` are tests that send a greeting and require words. Training did not
    include greetings, so the answer can be empty.
    """

    @pytest.fixture(autouse=True)
    def may_fail(self, request: pytest.FixtureRequest) -> None:
        """Expect chance results in these tests."""
        if request.node.originalname in GREETED:
            request.applymarker(pytest.mark.xfail(reason="the trained model may answer a greeting with nothing"))

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": WORLD, "max_tokens": 8, "stream_usage": True}

    @property
    def has_tool_calling(self) -> bool:
        return False

    @property
    def has_structured_output(self) -> bool:
        return False

    @property
    def supports_image_inputs(self) -> bool:
        return True

    @property
    def supports_audio_inputs(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        return False  # tested with the other one

    @property
    def supported_usage_metadata_details(self) -> Any:
        return {"invoke": ["audio_input"], "stream": []}

    def invoke_with_audio_input(self, *, stream: bool = False) -> Any:
        """Ask a question whose audio is counted."""
        import base64

        sound = base64.b64encode(Path("heard.wav").read_bytes()).decode()
        parts = [
            {"type": "text", "text": "What do you hear?"},
            {"type": "audio", "base64": sound, "mime_type": "audio/wav"},
        ]
        return ChatOpenAI(**self.chat_model_params).invoke([("user", parts)])
