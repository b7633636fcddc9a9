"""All OpenAI routes beside chat, by their paths."""

from services.gateway.apps.chats import Chats
from services.gateway.chat import Chat
from services.gateway.files import Files
from services.gateway.openai import embeddings, speech, transcriptions
from services.gateway.openai import images as pictures
from services.gateway.painting import Painters
from services.gateway.routes.dialects import Dialects
from services.gateway.routes.drawn import DrawnChats
from services.gateway.routes.embeddings import Embeddings
from services.gateway.routes.files import FileRoutes
from services.gateway.routes.images import Edits, Generations, Variations
from services.gateway.routes.serving import Route
from services.gateway.routes.speech import Speech
from services.gateway.routes.transcriptions import Transcriptions
from services.gateway.routes.videos import VideoRoutes
from services.gateway.run import Runs
from services.gateway.videos.service import Videos


class Table:
    """``posts`` answer POST requests of their path; ``files`` and ``videos`` are plain handlers."""

    def __init__(self, runs: Runs, chat: Chat, files: Files, videos: Videos) -> None:
        settings, painters = runs.settings, Painters(runs)
        #: Answers chats that want pictures.
        self.draw = DrawnChats(settings, chat, painters, files)
        #: Reads chats in other dialects.
        self.translate = Dialects(runs.router, chat, painters)
        self._speaking = Speech(settings, chat), Transcriptions(settings, chat)
        spoken, written = self._speaking
        self.posts: dict[str, Route] = {
            pictures.PATH: Generations(settings, painters, files),
            pictures.EDITS: Edits(settings, painters, files),
            pictures.VARIATIONS: Variations(settings),
            embeddings.PATH: Embeddings(settings, runs),
            speech.PATH: spoken,
            transcriptions.PATH: written,
        }
        self.files = FileRoutes(files)
        self.videos = VideoRoutes(settings, videos)

    def serve(self, apps: Chats) -> None:
        """From now on ``apps`` are known too."""
        for route in self._speaking:
            route.apps = apps
