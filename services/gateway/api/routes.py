"""All OpenAI routes beside chat, by their paths."""

from services.gateway.api.chat_images import DrawnChats
from services.gateway.api.dialects import Dialects
from services.gateway.api.embeddings import Embeddings
from services.gateway.api.files import FileRoutes
from services.gateway.api.images import Edits, Generations, Variations
from services.gateway.api.invocations import Invocations
from services.gateway.api.speech import Speech
from services.gateway.api.transcriptions import Transcriptions
from services.gateway.api.videos import VideoRoutes
from services.gateway.apps.chat import Chats
from services.gateway.http.route import Route
from services.gateway.media.files import Files
from services.gateway.openai import embeddings, speech, transcriptions
from services.gateway.openai import images as pictures
from services.gateway.replay.history import History
from services.gateway.request.request import Runs
from services.gateway.tasks.chat import Chat
from services.gateway.tasks.images import Painters
from services.gateway.videos.service import Videos


class Table:
    """``posts`` answer POST requests of their path; the others are plain handlers."""

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
        self.invocations = Invocations(settings, History(runs.records.bus))

    def serve(self, apps: Chats) -> None:
        """From now on ``apps`` are known too."""
        for route in self._speaking:
            route.apps = apps
