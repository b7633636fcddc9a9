"""An app's name, tasks, types and streaming, derived from its module."""

import sys
import textwrap
from collections.abc import Iterator

import pytest

from omnibus.app.introspect import LoadedApp, load_app
from omnibus.app_record import AppModel, AppSource, TaskRecord
from omnibus.errors import BadRequest

HEAD = """
from collections.abc import AsyncIterator, AsyncGenerator
from dataclasses import dataclass
from typing import Any
from pydantic import BaseModel
from omnibus.app import App
from omnibus.task import ChatInput, ChatOutput, CompositeTask, Stream, TaskInput, TaskOutput, UnitTask

class Words(TaskInput):
    text: str

class Letters(TaskOutput):
    letters: Stream[str]
    count: int

class Spell(UnitTask[Words, Letters]):
    upper: bool = False

class Poem(CompositeTask):
    first: Spell
    others: dict[str, Spell] = {}

class Mine(UnitTask[Words, Letters]):
    async def run(self, words: Words) -> Letters: ...

"""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
def load_sample(tmp_path):
    """A loader of an app from ``text`` after the usual imports."""

    def load_text(text: str, name: str = "sample_app") -> LoadedApp:
        (tmp_path / f"{name}.py").write_text(HEAD + textwrap.dedent(text))
        return load_app(AppSource("directory", name, str(tmp_path)))

    return load_text


SERVE = "async def serve(request): ...\n"


def test_an_app_is_called_what_its_module_is_called(load_sample):
    assert load_sample(SERVE, "poems").description.name == "poems"
    assert load_sample("app = App(name='odes-2')\n" + SERVE, "others").description.name == "odes-2"


@pytest.mark.parametrize("name", ["Über", "a b", "UPPER", "-a", "a" * 65, "a.b", "a/b"])
def test_a_name_that_cannot_stand_in_a_route_is_refused(load_sample, name):
    with pytest.raises(BadRequest, match="the module sample_app is not an app: the app's name .* must have"):
        load_sample(f"app = App(name={name!r})\n" + SERVE)


def test_the_documentation_is_the_modules_own(tmp_path):
    (tmp_path / "told_app.py").write_text('"""One line.\n\n    Another.\n"""\n' + SERVE)

    assert load_app(AppSource("directory", "told_app", str(tmp_path))).description.doc == "One line.\n\nAnother."


def test_all_tasks_that_the_module_names_are_found_once(load_sample):
    task_records = load_sample(
        """
        ONE = Spell()
        LOUD = [Spell(upper=True), Spell()]
        POEM = Poem(first=Spell(model="m", component="speller"), others={"a": Spell(component="x")})
        BY_NAME = {"mine": Mine()}
        """
        + SERVE
    ).description.tasks

    assert [task.name for task in task_records] == ["spell", "spell-upper_true", "spell-m-speller", "spell-x", "mine"]
    assert task_records[1] == TaskRecord(
        "spell-upper_true", "spell", "", "spell", "generator", False, "sample_app:Spell", {"upper": True}
    )
    assert (task_records[2].model, task_records[2].component, task_records[2].fields) == ("m", "speller", {})
    assert task_records[4].own


def test_a_task_with_an_engine_says_where_it_is_imported_from(load_sample, tmp_path):
    (task,) = load_sample("MINE = Mine()\n" + SERVE).description.tasks

    assert (task.cls, task.root, task.own) == ("sample_app:Mine", str(tmp_path), True)


def test_a_task_with_an_engine_cannot_be_defined_inside_of_a_function(load_sample):
    with pytest.raises(BadRequest, match="executors import it from there"):
        load_sample(
            """
            def make():
                class Hidden(UnitTask[Words, Letters]):
                    async def run(self, words): ...
                return Hidden()
            HIDDEN = make()
            """
            + SERVE
        )


def test_an_upload_may_not_bring_an_engine():
    with pytest.raises(BadRequest, match="cannot have its own unit tasks .mine."):
        load_app(AppSource("upload", "sent_app"), HEAD + "MINE = Mine()\n" + SERVE)


def test_an_app_without_tasks_is_an_app(load_sample):
    assert load_sample(SERVE).description.tasks == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it has no `serve`"),
        ("def serve(request): ...", "must be `async def`"),
        ("serve = 3", "must be `async def`"),
        ("async def serve(): ...", "must take one argument"),
        ("async def serve(a, b): ...", "must take one argument"),
        ("async def serve(*, request): ...", "must take one argument"),
        ("async def serve(*request): ...", "must take one argument"),
        ("async def serve(request: 'Nowhere'): ...", "cannot read the annotations of its `serve` .NameError"),
        ("class Odd: ...\nasync def serve(request: Odd): ...", "the type of its request, .*Odd.* cannot be checked"),
        ("class Odd: ...\nasync def serve(request) -> Odd: ...", "the type of its answer, .*Odd.* cannot be checked"),
        ("async def serve(request) -> int:\n    yield 1", "annotated `-> AsyncIterator"),
        ("app = 3\n" + SERVE, "its `app` must be an `omnibus.app.App`"),
        ("app = App(model='m')\n" + SERVE, "serve.request: ChatInput. -> ChatOutput"),
        (
            "app = App(model='m m')\nasync def serve(request: ChatInput) -> ChatOutput: ...",
            "the model's name 'm m' must have",
        ),
    ],
)
def test_what_is_wrong_with_a_module_is_said_under_its_name(load_sample, text, reason):
    with pytest.raises(BadRequest, match=f"the module sample_app is not an app: .*{reason}"):
        load_sample(text)


def test_an_argument_with_a_default_is_not_asked_for(load_sample):
    assert load_sample("async def serve(request, more=1): ...").description.request == {}


@pytest.mark.parametrize(
    ("text", "request_", "response"),
    [
        (SERVE, {}, {}),
        ("async def serve(request: Any) -> Any: ...", {}, {}),
        ("async def serve(request: int) -> str: ...", {"type": "integer"}, {"type": "string"}),
        (
            "async def serve(request: list[int]) -> dict[str, float]: ...",
            {"type": "array", "items": {"type": "integer"}},
            {"type": "object", "additionalProperties": {"type": "number"}},
        ),
        ("async def serve(request: str) -> Letters: ...", {"type": "string"}, {}),
        ("async def serve(request: str) -> Stream[str]: ...", {"type": "string"}, {"type": "string"}),
        ("async def serve(request: str) -> AsyncIterator[int]: ...", {"type": "string"}, {"type": "integer"}),
    ],
)
def test_types_become_schemas(load_sample, text, request_, response):
    app_description = load_sample(text).description

    assert (app_description.request, app_description.response) == (request_, response)


def test_models_and_dataclasses_become_schemas(load_sample):
    app_description = load_sample(
        """
        class Asked(BaseModel):
            text: str
            count: int = 1

        @dataclass
        class Told:
            words: list[str]

        async def serve(request: Asked) -> Told: ...
        """
    ).description

    assert app_description.request["required"] == ["text"]
    assert app_description.request["properties"]["count"]["type"] == "integer"
    assert app_description.response["properties"]["words"] == {
        "items": {"type": "string"},
        "title": "Words",
        "type": "array",
    }


@pytest.mark.parametrize(
    ("text", "streams"),
    [
        (SERVE, False),
        ("async def serve(request) -> int: ...", False),
        ("async def serve(request):\n    yield 1", True),
        ("async def serve(request) -> AsyncIterator[int]:\n    yield 1", True),
        ("async def serve(request) -> AsyncGenerator[int, None]:\n    yield 1", True),
        ("async def serve(request) -> AsyncIterator[int]: ...", True),
        ("async def serve(request) -> AsyncIterator: ...", True),
    ],
)
def test_an_app_streams_when_it_yields_or_says_so(load_sample, text, streams):
    assert load_sample(text).description.streams == streams


def test_a_chat_app_has_a_route_when_it_names_its_model(load_sample):
    chat = "async def serve(request: ChatInput) -> ChatOutput: ...\n"

    named_app = load_sample("app = App(model='org/poet-7b')\n" + chat).description

    assert (named_app.route, named_app.model) == ("chat", "org/poet-7b")
    unnamed_app = load_sample(chat, "unnamed_app").description
    assert (unnamed_app.route, unnamed_app.model) == ("", "")


SPEAK = """
from omnibus.task.library import RecordingInput, SpeechOutput, TextToSpeechInput, Transcript
async def speak(request: TextToSpeechInput) -> SpeechOutput: ...
"""
TRANSCRIBE = "async def transcribe(request: RecordingInput) -> Transcript: ...\n"
CHATS = "async def serve(request: ChatInput) -> ChatOutput: ...\n"


def test_functions_of_a_model_are_its_routes(load_sample):
    app = load_sample("app = App(model='echo', voices=['one'], context_length=8)\n" + SPEAK + TRANSCRIBE)

    description = app.description
    assert (description.route, description.routes) == ("", ("transcriptions", "speech"))
    assert not description.invocable
    assert description.about == AppModel(("audio", "text"), ("transcript", "audio"), ("one",), 8)
    assert app.functions.keys() == {"transcriptions", "speech"}


def test_without_a_model_they_are_functions_like_any_other(load_sample):
    description = load_sample(SPEAK + CHATS).description

    assert description.routes == ()
    assert description.invocable


def test_modalities_that_a_chat_leaves_open_are_those_that_it_declares(load_sample):
    declared = load_sample("app = App(model='a', input_modalities=['text', 'audio'])\n" + CHATS, "one_app")
    undeclared = load_sample("app = App(model='a')\n" + CHATS + SPEAK, "other_app")

    assert declared.description.about == AppModel(("text", "audio"))
    assert undeclared.description.about == AppModel()
    assert (undeclared.description.route, undeclared.description.routes) == ("chat", ("speech",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("app = App(model='a')\n" + CHATS + "async def speak(request: str) -> str: ...", "`speak` of an app with a model must be `async def speak"),
        ("app = App(model='a')\n" + CHATS + "def embed(request): ...", "its `embed` must be `async def`"),
        ("app = App(model='a', input_modalities=['smell'])\n" + CHATS, "'smell' is no modality: use text, image, video, audio"),
        ("app = App(model='a', voices=[''])\n" + CHATS, "the voices must be names of 1 to 64 characters"),
        ("app = App(model='a', context_length=-1)\n" + CHATS, "the context length must be a number of tokens"),
    ],
)  # fmt: skip
def test_a_model_that_is_declared_wrongly_says_what_to_do(load_sample, text, message):
    with pytest.raises(BadRequest, match=message):
        load_sample(text)
