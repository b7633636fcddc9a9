"""All OpenAI routes beside chat, by their paths."""

from services.gateway.chat import Chat
from services.gateway.files import Files
from services.gateway.history import History
from services.gateway.openai import embeddings, speech, transcriptions
from services.gateway.openai import images as pictures
from services.gateway.painting import Painters
from services.gateway.routes.drawn import DrawnChats
from services.gateway.routes.embeddings import Embeddings
from services.gateway.routes.files import FileRoutes
from services.gateway.routes.images import Edits, Generations, Variations
from services.gateway.routes.invocations import Invocations
from services.gateway.routes.serving import Route
from services.gateway.routes.speech import Speech
from services.gateway.routes.transcriptions import Transcriptions
from services.gateway.routes.videos import VideoRoutes
from services.gateway.run import Runs
from services.gateway.videos.service import Videos


class Table:
    """``posts`` answer POST requests of their path; the others are plain handlers."""

    def __init__(self, runs: Runs, chat: Chat, files: Files, videos: Videos) -> None:
        settings, painters = runs.settings, Painters(runs)
        #: Answers chats that want pictures.
        self.draw = DrawnChats(settings, chat, painters, files)
        self.posts: dict[str, Route] = {
            pictures.PATH: Generations(settings, painters, files),
            pictures.EDITS: Edits(settings, painters, files),
            pictures.VARIATIONS: Variations(settings),
            embeddings.PATH: Embeddings(settings, runs),
            speech.PATH: Speech(settings, chat),
            transcriptions.PATH: Transcriptions(settings, chat),
        }
        self.files = FileRoutes(files)
        self.videos = VideoRoutes(settings, videos)
        self.invocations = Invocations(settings, History(runs.records.bus))
