"""Several paths through one model, chosen by weights (Cornserve, listing 2).

``choose`` matches the weights exactly over many requests, and replays repeat its recorded choices. By default, the
plan's rates do the same; call ``choose`` if your app has better information.
"""

from omnibus.app import App
from omnibus.task import MLLM, ChatInput, ChatOutput, CompositeTask, Encode, Think, choose

MODEL = "qwen2.5-vl-tiny"

app = App(model="routed")


def path(name: str) -> MLLM:
    """The model on one path of the plan: ``E>L`` is fission, ``EL`` one executor, ``E>EL`` helps ``EL`` out."""
    encoder = Encode(model=MODEL, component="vision")
    thinker = Think(model=MODEL, component="thinker")
    return MLLM(encoders={"image": encoder, "video": encoder}, thinker=thinker, path=name)


class Router(CompositeTask[ChatInput, ChatOutput]):
    paths: list[MLLM]
    with_pictures: list[float]
    text_only: MLLM

    def invoke(self, request: ChatInput) -> ChatOutput:
        if not request.media:
            return self.text_only.invoke(request)
        return choose(self.paths, self.with_pictures).invoke(request)


ROUTER = Router(paths=[path("EL"), path("E>L"), path("E>EL")], with_pictures=[0.2, 0.5, 0.3], text_only=path("L"))


async def serve(request: ChatInput) -> ChatOutput:
    return await ROUTER(request)
