"""Tokenizers with one token for each word, alone and after a space."""

from collections.abc import Mapping, Sequence
from typing import Any

from omnibus_models.families.qwen_image import TEMPLATE
from omnibus_models.tiny import _chat_tokenizer
from omnibus_models.world import dialogues, scenes, tone_synth

#: Room for all texts that become one token.
_VOCABULARY = 2000

#: Prompts for transcription, which these models have not learnt.
_UNLEARNT = (
    "What was said?",
    "Write down what was said.",
    "You are a speech recognition model.",
    "Transcribe the audio into text. Write what is said, and nothing else.",
)

#: Prompts left out of training as well: a yes or a no takes longer to learn than a name.
_UNASKED = ("Is it {}?",)


def build_chat_template(image: str, video: str, audio: str = "") -> str:
    """See ``tiny._chat_tokenizer.build_chat_template``.

    It adds no system message: fewer tokens make training faster.
    """
    return _chat_tokenizer.build_chat_template(image, video, audio, system=False)


def train_tokenizer(special: Sequence[str], names: Mapping[str, str], chat_template: str) -> Any:
    """See ``tiny._chat_tokenizer.train_tokenizer``."""
    return _chat_tokenizer.train_tokenizer(
        special, names, chat_template, texts=_training_texts(), vocabulary=_VOCABULARY
    )


def _training_texts() -> list[str]:
    """Return all texts of this world, with the template of Qwen-Image's pipeline."""
    texts = [
        *dialogues.SEE,
        *dialogues.HEAR,
        *dialogues.BOTH,
        *dialogues.COLOUR,
        *dialogues.SHAPE,
        *dialogues.COUNT,
        *dialogues.PLACE,
    ]
    texts += [*dialogues.GROUND, *_UNLEARNT[:2], *dialogues.SAY, *_UNASKED, *dialogues.WISHES, "on a background"]
    texts += [*_UNLEARNT[2:], *dialogues.READ, dialogues.HELPFUL]
    words = [*tone_synth.WORDS, *scenes.COLOURS, *texts, "system", "user", "assistant", TEMPLATE]
    return [form for word in words for form in (word, f" {word}")] * 4
