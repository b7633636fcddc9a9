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
    """Declaration of an app by its module. ``name`` is the app's, by default the last part of the module's;
    ``model`` makes it an OpenAI chat model of that name, for a ``serve(request: ChatInput) -> ChatOutput``."""

    name: str = ""
    model: str = ""
