"""Questions about scenes and audio, and their right answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from omnibus_models.world import scenes, tone_synth
from omnibus_models.world.scenes import ShapeScene

SEE = ("What do you see?", "What is in this picture?", "Describe the image.", "What is this?")
HEAR = ("What do you hear?", "What is in this audio clip?", "Describe the sound.")
BOTH = ("What do you see and hear?", "Describe the picture and the sound.", "What is this?")
COLOUR = ("What colour is it?", "Which colour is it?", "What is the colour?")
SHAPE = ("What shape is it?", "Which shape is it?", "What is the shape?")
COUNT = ("How many are there?", "How many do you see?")
PLACE = ("Where is it?", "Where are they?")
GROUND = ("What colour is the background?", "What is behind it?")
SAY = ("Say {}", "Repeat {}")

#: The gateway's prompt for a text to speak.
READ = ("You read texts aloud, exactly as they are written.", "Read this text aloud:\n\n{}")
#: A system message that clients often send.
HELPFUL = "You are a helpful assistant."
_HELPFUL_SHARE, _AFTER_SHARE = 0.1, 0.4  # shares of questions with that message, and of those before their media


@dataclass(frozen=True)
class Dialogue:
    """One question and its answer, about a ``scene`` and ``tones``.

    With ``after``, they follow the question, else they precede it.
    """

    question: str
    answer: str
    scene: ShapeScene | None = None
    tones: tuple[str, ...] = ()
    system: str = ""
    after: bool = False

    @property
    def media(self) -> tuple[str, ...]:
        """The media of the question, in order."""
        return (("image",) if self.scene else ()) + (("audio",) if self.tones else ())

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Return the question as messages for a thinker."""
        media, text = [{"type": kind} for kind in self.media], [{"type": "text", "text": self.question}]
        system_messages: list[dict[str, Any]] = [{"role": "system", "content": self.system}] if self.system else []
        return [*system_messages, {"role": "user", "content": [*text, *media] if self.after else [*media, *text]}]


def scene_question(scene: ShapeScene, question: str = SEE[0]) -> Dialogue:
    return Dialogue(question, scene.caption, scene)


def tones_question(tones: tuple[str, ...], question: str = HEAR[0]) -> Dialogue:
    return Dialogue(question, " ".join(tones), None, tones)


def scene_and_tones_question(scene: ShapeScene, tones: tuple[str, ...], question: str = BOTH[0]) -> Dialogue:
    return Dialogue(question, f"{scene.caption} and {' '.join(tones)}", scene, tones)


def speech_question(text: str, question: str = SAY[0]) -> Dialogue:
    return Dialogue(question.format(text), text)


def read_aloud(text: str) -> Dialogue:
    system, question = READ
    return Dialogue(question.format(text), text, system=system)


def sample_question(random: np.random.Generator, kind: str, scene: ShapeScene, tones: tuple[str, ...]) -> Dialogue:
    """Return a question of ``kind`` (see ``SHARES``) about ``scene`` or ``tones``."""
    talk = _KINDS[kind](random, scene, tones)
    if talk.system:
        return talk
    system = HELPFUL if random.random() < _HELPFUL_SHARE else ""
    return replace(talk, system=system, after=bool(random.random() < _AFTER_SHARE))


def sample_tones(random: np.random.Generator) -> tuple[str, ...]:
    """Return one to three tones."""
    count = int(random.integers(1, tone_synth.MAX_TONES + 1))
    return tuple(str(tone) for tone in random.choice(list(tone_synth.TONES), count))


def sample_sentence(random: np.random.Generator, scene: ShapeScene, tones: tuple[str, ...]) -> str:
    """Return a sentence to speak."""
    return _choose_one(
        random,
        (scene.caption, scene.caption, " ".join(tones), scene_and_tones_question(scene, tones).answer, scene.colour),
    )


def _choose_one(random: np.random.Generator, of: tuple[str, ...]) -> str:
    return of[int(random.integers(len(of)))]


_Maker = Callable[[np.random.Generator, ShapeScene, tuple[str, ...]], Dialogue]
_KINDS: Mapping[str, _Maker] = {
    "see": lambda random, scene, tones: scene_question(scene, _choose_one(random, SEE)),
    "hear": lambda random, scene, tones: tones_question(tones, _choose_one(random, HEAR)),
    "both": lambda random, scene, tones: scene_and_tones_question(scene, tones, _choose_one(random, BOTH)),
    "colour": lambda random, scene, tones: Dialogue(_choose_one(random, COLOUR), scene.colour, scene),
    "shape": lambda random, scene, tones: Dialogue(_choose_one(random, SHAPE), scene.shape, scene),
    "count": lambda random, scene, tones: Dialogue(_choose_one(random, COUNT), scenes.COUNTS[scene.count - 1], scene),
    "place": lambda random, scene, tones: Dialogue(_choose_one(random, PLACE), scene.place, scene),
    "ground": lambda random, scene, tones: Dialogue(_choose_one(random, GROUND), scene.ground, scene),
    "say": lambda random, scene, tones: speech_question(
        sample_sentence(random, scene, tones), _choose_one(random, SAY)
    ),
    "read": lambda random, scene, tones: read_aloud(sample_sentence(random, scene, tones)),
}
#: Kinds of questions, and their shares in training.
SHARES: Mapping[str, float] = {
    "see": 0.28, "hear": 0.06, "both": 0.26, "colour": 0.02, "shape": 0.09, "count": 0.09, "place": 0.03,
    "ground": 0.03, "say": 0.08, "read": 0.06,
}  # fmt: skip

#: Prompts for an image, with a place for its caption.
WISHES = ("{}", "{}", "draw {}", "paint {}", "a picture of {}", "Draw {}.")


def sample_image_prompt(random: np.random.Generator, scene: ShapeScene) -> str:
    """Return a prompt for an image of ``scene``, in a random wording."""
    plain = f"on {scene.ground}"
    ground = _choose_one(random, (plain, plain, f"{plain} background", f"on a {scene.ground} background"))
    return _choose_one(random, WISHES).format(scene.caption.replace(plain, ground))
