"""An app that is a text-only language model."""

from omnibus.app import App
from omnibus.task import MLLM, ChatInput, ChatOutput, Think

app = App(model="teller")

TELLER = MLLM(encoders={}, thinker=Think(model="qwen2-tiny", component="thinker"))


async def serve(request: ChatInput) -> ChatOutput:
    return await TELLER(request)
