"""Apps: a module with tasks and ``async def serve(request)``.

from omnibus.app import App
from omnibus.task import ChatInput, ChatOutput

app = App(model="poet")                      # optional: also an OpenAI model

async def serve(request: ChatInput) -> ChatOutput:
    return await MODEL(request)
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class App:
    """Declaration of an app in its module.

    ``name`` is that of the app, by default the last part of the module's name. ``model`` makes the app an OpenAI chat
    model with that name. It then needs ``serve(request: ChatInput) -> ChatOutput``.
    """

    name: str = ""
    model: str = ""
