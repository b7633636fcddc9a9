"""A multimodal LLM as a graph: one encoder call per image, then one LLM (Cornserve, listing 1).

The library contains it as ``omnibus.task.MLLM``. This file shows how to write it yourself.
"""

from omnibus.app import App
from omnibus.errors import BadRequest
from omnibus.task import ChatInput, ChatOutput, CompositeTask, Encode, Think
from omnibus.task.library import EncodeInput, ThinkInput

MODEL = "qwen2.5-vl-tiny"

app = App(model="my-mllm")


class MultimodalLLM(CompositeTask[ChatInput, ChatOutput]):
    encoder: Encode
    llm: Think

    def invoke(self, request: ChatInput) -> ChatOutput:
        if "audio" in request.modalities:
            raise BadRequest("this model sees but does not hear", param="messages")
        embeddings = [self.encoder.invoke(EncodeInput(media=media)).embedding for media in request.media]
        thought = self.llm.invoke(ThinkInput(messages=request.messages, items=embeddings, params=request.params))
        return ChatOutput(text=thought.text)


MLLM = MultimodalLLM(encoder=Encode(model=MODEL, component="vision"), llm=Think(model=MODEL, component="thinker"))


async def serve(request: ChatInput) -> ChatOutput:
    return await MLLM(request)
