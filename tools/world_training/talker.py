"""Train the talker: it learns the codes of each word from a trained thinker.

Then it learns from answers of which half are cut after any word, as ``max_tokens`` and stop strings cut them.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from omnibus_models.world import scenes, tone_synth
from tools.world_training import loop, omni, thinker
from tools.world_training.thinker import Batch

_WHOLE_STEPS, _CUT_STEPS = 1300, 350
STEPS, BATCH, RATE = _WHOLE_STEPS + _CUT_STEPS, 24, 2e-3
_CUT_RATE = 1e-3
_CUT_SHARE = 0.5  # of the answers of the second stage
_SIZES = (4_000, 400)  # images and audio clips


class Lesson:
    """Inputs and targets of a talker for a batch of answers.

    See ``families.qwen2_5_omni.Talker``.
    """

    def __init__(self, model: Any, seed: int, cut_share: float = 0.0) -> None:
        self._cut_share = cut_share
        self._thinker, self._talker = model.thinker, model.talker
        self._random = np.random.default_rng(seed)
        text_tokenizer = omni.tokenizer()
        begins = [voice["bos_token"] for voice in omni.voices(text_tokenizer).values()]
        config = model.config.talker_config
        self._marks = torch.tensor([*begins, config.tts_text_end_token_id, config.tts_text_pad_token_id])

    def of(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs [B, T, H], positions [3, B, T] and labels [B, T].

        Labels are -100 without speech.
        """
        with torch.no_grad():
            hidden = thinker.answered(self._thinker, batch)
            texts = self._thinker.get_input_embeddings()(batch.ids)
            marks = self._thinker.get_input_embeddings()(self._marks)
        config = self._thinker.config
        media = (batch.ids == config.image_token_id) | (batch.ids == config.audio_token_id)
        rows = hidden + texts.masked_fill(media[..., None], 0)
        lines = [self._line(batch, row, rows[row], marks) for row in range(len(batch.talks))]
        labels = nn.utils.rnn.pad_sequence(
            [label_row for _, _, label_row in lines], batch_first=True, padding_value=-100
        )
        inputs = nn.utils.rnn.pad_sequence([input_row for input_row, _, _ in lines], batch_first=True)
        places = nn.utils.rnn.pad_sequence([place for _, place, _ in lines], batch_first=True)
        return inputs, places.permute(2, 0, 1), labels

    def _line(self, batch: Batch, row: int, rows: Tensor, marks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One answer: [T, H], [T, 3] and [T]."""
        talker = self._talker
        question_length = int((batch.labels[row] >= 0).nonzero()[0]) + 1  # ids of the question
        words = int((batch.labels[row] >= 0).sum()) - 1  # the end of the answer is never read
        if self._cut_share and self._random.random() < self._cut_share:
            words = int(self._random.integers(1, words + 1))
        text = " ".join(batch.talks[row].answer.split()[:words])  # each word is one token
        codes = torch.tensor([*tone_synth.speech_codes(text), talker.codec_eos_token])
        before = torch.cat([torch.tensor([talker.codec_pad_token, talker.codec_bos_token]), codes[:-1]])
        voice = marks[int(self._random.integers(len(tone_synth.VOICES)))]
        hidden = torch.cat([voice[None], rows[question_length : question_length + words], marks[-2:-1]])
        hidden = torch.cat([hidden, marks[-1:].expand(len(before) - len(hidden), -1)])
        speech = hidden + talker.get_input_embeddings()(before)
        more = batch.positions[:, row, :question_length].max() + 1 + torch.arange(len(before))
        places = torch.cat([batch.positions[:, row, :question_length].T, more[:, None].expand(-1, 3)])
        labels = torch.cat([torch.full((question_length + 1,), -100), codes])
        return torch.cat([rows[:question_length], speech]), places, labels


def spoken(talker: Any, inputs: Tensor, positions: Tensor) -> Tensor:
    """Hidden states [B, T, H] for the inputs of ``Lesson``."""
    hidden: Tensor = talker.model(
        inputs_embeds=talker.thinker_to_talker_proj(inputs), position_ids=positions, use_cache=False
    ).last_hidden_state
    return hidden


def learn(model: Any, seed: int) -> None:
    """Train the talker of ``model``, whose thinker is trained already."""
    loop.spread(model.talker, seed)
    _learn_stage(model, seed, _WHOLE_STEPS, RATE, 0.0)
    learn_cut_answers(model, seed)


def learn_cut_answers(model: Any, seed: int) -> None:
    """Train the second stage, from the end of the first one."""
    _learn_stage(model, seed + 1, _CUT_STEPS, _CUT_RATE, _CUT_SHARE)


def _learn_stage(model: Any, seed: int, steps: int, rate: float, cut_share: float) -> None:
    teacher = thinker.Teacher(model, scenes.training_scenes(), seed + 1, _SIZES)
    lesson = Lesson(model, seed, cut_share)

    def loss(step: int) -> Tensor:
        inputs, positions, labels = lesson.of(teacher.batch(BATCH))
        mask = labels >= 0
        hidden = spoken(model.talker, inputs, positions)
        return nn.functional.cross_entropy(model.talker.codec_head(hidden[mask]), labels[mask])

    loop.train("talker", model.talker.parameters(), loss, steps, rate)


@torch.no_grad()
def examined(model: Any, seed: int, count: int = 192, cut_share: float = 0.0) -> float:
    """Share of answers about unseen scenes that are spoken right, by code."""
    teacher, lesson = thinker.Teacher(model, scenes.held_out_scenes(), seed, (400, 100)), Lesson(model, seed, cut_share)
    inputs, positions, labels = lesson.of(teacher.batch(count))
    likeliest = model.talker.codec_head(spoken(model.talker, inputs, positions)).argmax(-1)
    return 1 - float(((likeliest != labels) & (labels >= 0)).any(1).float().mean())
