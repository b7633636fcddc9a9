"""The golden files: messages of every released wire version, permanently readable and replayable.

    v<n>/<kind>_*.json          one message of each kind, and invocations that show a detail
    v<n>/recorded/<name>.json   an invocation of a tiny model, the very bytes that lay in the record stream
    v<n>/recorded/<name>.end.json  its end, from the same stream
    media/<sha256>              what these name by content hash: images, audio, long messages, spoken answers
    v<n>/recorded/<name>_to_the_end.json  the same request where an earlier build answered wrongly, see ``CORRECTED``

They represent records in users' streams, so never edit them. A change that only adds a field with a default keeps the
version, and all files pass unchanged. Any other change needs a new version:

- Raise ``omnibus.graph.WIRE_VERSION``.
- Add ``v<n+1>/`` with files of every kind. ``nats stream get OMNIBUS_INVOCATIONS`` gives an invocation and its end,
  ``nats sub 'omnibus.>'`` the rest.
- Add to ``REFUSED`` the files that the new build no longer reads, or write a reader for them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from omnibus.graph import HANDLE

HERE = Path(__file__).parent
MEDIA = HERE / "media"
#: Versions that this build refuses by name.
REFUSED: set[str] = set()
#: The recipe (``omnibus_models.tiny.RECIPE``) of the checkpoints that gave the recorded answers.
RECIPE = 4
#: Answers whose tokens were drawn by their rank and not by their id, as executors of earlier builds did.
DRAWN_BY_RANK = frozenset({"v1/omni_speech_sampled", "v1/vl_replayed", "v1/vl_sampled", "v1/vl_sampled_and_stopped"})
#: Invocations that earlier builds answered wrongly: the speech of an answer that ``max_tokens`` cuts lacked its last token,
#: and no frame was taken from the end of a video. ``<name>_to_the_end`` is the same request with the right answer.
CORRECTED = frozenset(
    {
        "v1/omni_image_and_audio_to_speech",
        "v1/omni_speech",
        "v1/omni_speech_drawn",
        "v1/omni_speech_together",
        "v1/vl_video",
    }
)


class Golden(NamedTuple):
    """A recorded invocation and its end, as their very bytes."""

    name: str
    body: bytes
    end_body: bytes

    @property
    def document(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.body)
        return content

    @property
    def end(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.end_body)
        return content

    @property
    def id(self) -> str:
        return str(self.document["id"])

    @property
    def full(self) -> bool:
        """Return True if it was recorded in ``full`` mode.

        Such a record contains everything for a replay.
        """
        return b'"$digest"' not in self.body

    @property
    def done(self) -> bool:
        return bool(self.end["status"] == "done")

    @property
    def drawn_by_rank(self) -> bool:
        """Return True if its seed selects other tokens in this build.

        The replay then gives another answer.
        """
        return self.name in DRAWN_BY_RANK

    @property
    def is_corrected(self) -> bool:
        """Return True if its recorded answer was wrong; a replay differs."""
        return self.name in CORRECTED

    @property
    def right_answer(self) -> dict[str, Any]:
        """Answer of this build."""
        name = f"{self.name}_to_the_end" if self.is_corrected else self.name
        [answer] = [golden.end["answer"] for golden in read_recorded() if golden.name == name]
        return dict(answer)

    @property
    def media(self) -> set[str]:
        """Content hashes of inputs sent by handle, and of output audio."""
        audio_hash = self.end["answer"].get("audio_sha256")
        return {literal["sha256"] for literal in find_handles(self.document)} | ({audio_hash} if audio_hash else set())


def find_handles(value: Any) -> Iterator[dict[str, Any]]:
    """Every literal that travelled by handle."""
    if isinstance(value, dict) and HANDLE in value:
        yield value
    elif isinstance(value, dict | list):
        for element in value.values() if isinstance(value, dict) else value:
            yield from find_handles(element)


def read_recorded(model: str = "") -> list[Golden]:
    """All recorded invocations (of ``model``) that this build reads, by name."""
    bodies = [path for path in _list_files("v*/recorded/*.json") if not path.name.endswith(".end.json")]
    goldens = [
        Golden(
            f"{path.parts[-3]}/{path.stem}",
            path.read_bytes().rstrip(b"\n"),
            path.with_suffix(".end.json").read_bytes().rstrip(b"\n"),
        )
        for path in bodies
    ]
    return [golden for golden in goldens if not model or golden.document["model"] == model]


def list_messages() -> list[Path]:
    """Files with one message each, of every version; their names begin with the kind."""
    return sorted(HERE.glob("v*/*.json"))


def _list_files(pattern: str) -> list[Path]:
    return sorted(path for path in HERE.glob(pattern) if path.relative_to(HERE).parts[0] not in REFUSED)


def read_invocations() -> dict[str, bytes]:
    """Every readable invocation by name, recorded or written as an example."""
    paths = _list_files("v*/invocation_*.json")
    return {
        **{f"{path.parts[-2]}/{path.stem}": path.read_bytes().rstrip(b"\n") for path in paths},
        **{golden.name: golden.body for golden in read_recorded()},
    }


def fill_store(directory: Path) -> None:
    """Store all media as a gateway does, by content hash."""
    for path in MEDIA.iterdir():
        place = directory / path.name[:2]
        place.mkdir(parents=True, exist_ok=True)
        (place / path.name).write_bytes(path.read_bytes())


def contains_part(whole: Any, part: Any) -> bool:
    """Return True if ``whole`` contains everything in ``part``.

    A newer build may add fields, but not remove any.
    """
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(key in whole and contains_part(whole[key], value) for key, value in part.items())
    if isinstance(whole, list) and isinstance(part, list):
        return len(whole) == len(part) and all(map(contains_part, whole, part))
    return bool(whole == part)
