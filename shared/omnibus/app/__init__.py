"""Apps: a module with tasks and ``async def serve(request)``, or a function for each route of ``omnibus.app.routes``.

from omnibus.app import App
from omnibus.task import ChatInput, ChatOutput

app = App(model="poet")                      # optional: also an OpenAI model

async def serve(request: ChatInput) -> ChatOutput:
    return await MODEL(request)
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class App:
    """Declaration of an app in its module.

    ``name`` is that of the app, by default the last part of the module's name. ``model`` makes the app an OpenAI model
    with that name: it then needs ``serve(request: ChatInput) -> ChatOutput`` for chats, or another function of
    ``omnibus.app.routes.ROUTES``. The rest is for clients, who see it in ``/v1/models``. With modalities of requests
    or ``voices``, a gateway rejects all others.
    """

    name: str = ""
    model: str = ""
    #: Of ``text``, ``image``, ``video`` and ``audio``.
    input_modalities: Sequence[str] = ()
    output_modalities: Sequence[str] = ()
    voices: Sequence[str] = ()
    #: Tokens of prompt and answer together; 0 if unknown.
    context_length: int = 0
