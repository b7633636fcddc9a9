"""Train encoders and thinker together, on the next word of right answers."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from omnibus_models.contract import Encoded
from omnibus_models.families import qwen2_5_omni
from omnibus_models.world import dialogues, scenes
from omnibus_models.world.dialogues import Dialogue
from omnibus_models.world.scenes import ShapeScene
from tools.world_training import loop, omni, pools

BATCH, RATE = 48, 2e-3
_PARTS = 3  # of a batch
_PICTURES, _TONES = 8_000, 1_000


class Stage(NamedTuple):
    """Steps of the training: it ends after ``until`` of them, out of ``steps``.

    ``wild`` is that of ``pools.pictures``. ``shares`` contains the frequency of each kind of question, and ``sizes``
    the numbers of images and audio clips. With ``muon``, Muon trains the matrices.
    """

    steps: int
    until: int
    wild: float
    shares: Mapping[str, float]
    sizes: tuple[int, int] = (_PICTURES, _TONES)
    muon: bool = False
    warm: int = loop.WARM
    rate: float = RATE


_SHAPES = {
    "see": 0.36, "hear": 0.06, "both": 0.24, "colour": 0.03, "shape": 0.12, "count": 0.04, "place": 0.04,
    "ground": 0.03, "say": 0.04, "read": 0.04,
}  # fmt: skip
#: First colours, places, numbers and tones, by large steps; then, by small ones, shapes as well, which take longest.
STAGES = (
    Stage(1600, 900, 1.0, dialogues.SHARES, muon=True),
    Stage(1100, 300, scenes.WILD, _SHAPES),
    Stage(350, 350, scenes.WILD, _SHAPES, (4000, 400), warm=20),
    Stage(400, 200, scenes.WILD, _SHAPES, warm=20, rate=1.5e-3),
    Stage(500, 500, scenes.WILD, _SHAPES, warm=20, rate=1e-3),
    Stage(900, 900, scenes.WILD, dialogues.SHARES, (12_000, 1_000), warm=20, rate=1.2e-3),
)


@dataclass(frozen=True)
class Batch:
    """Batch of questions and answers, short ones padded at their end.

    ``ids`` and ``labels`` are [B, T]; labels are -100 outside of answers. ``positions`` are [3, B, T]. ``pixels``
    [patches, n] and ``mels`` are those of all media in order.
    """

    talks: Sequence[Dialogue]
    ids: Tensor
    labels: Tensor
    positions: Tensor
    pixels: Tensor | None
    grids: Tensor | None
    mels: Sequence[Tensor]


class Question(NamedTuple):
    """A question, its answer, its image's index, and its audio features."""

    talk: Dialogue
    picture: int | None
    mel: Tensor | None


class Teacher:
    """Creates questions with answers; ``of`` are the scenes that it shows."""

    def __init__(
        self,
        model: Any,
        of: Sequence[ShapeScene],
        seed: int,
        sizes: tuple[int, int] = (_PICTURES, _TONES),
        wild: float = scenes.WILD,
        shares: Mapping[str, float] = dialogues.SHARES,
    ) -> None:
        with tempfile.TemporaryDirectory() as directory:
            omni.save(omni.build(seed), Path(directory))
            self._hearing = qwen2_5_omni.FAMILY.load("audio", Path(directory))
            self._reader = qwen2_5_omni.Qwen25OmniThinker(model.thinker, Path(directory), model.config.talker_config)
        self._shares, self._random = shares, np.random.default_rng(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self._pictures = pools.pictures(of, sizes[0], seed, wild)
        self._tones = pools.tones(self._hearing, sizes[1], seed)
        config = model.thinker.config
        self._placeholders = {"image": config.image_token_id, "audio": config.audio_token_id}
        self._known: dict[Any, Tensor] = {}
        self._prompts: dict[Any, Any] = {}
        self._tokenizer = omni.tokenizer()
        self._pad, self._end = self._tokenizer.pad_token_id, self._tokenizer.eos_token_id

    def batch(self, count: int, kind: str = "") -> Batch:
        """``count`` questions, of one ``kind`` or of all."""
        return self._together(self._questions(count, kind))

    def batches(self, count: int, parts: int) -> list[Batch]:
        """``count`` questions in ``parts``, sorted by length to reduce padding."""
        questions = sorted(self._questions(count), key=self._length)
        size = -(-count // parts)
        return [self._together(questions[begin : begin + size]) for begin in range(0, count, size)]

    def _questions(self, count: int, kind: str = "") -> list[Question]:
        kinds = (
            [kind] * count if kind else self._random.choice(list(self._shares), count, p=list(self._shares.values()))
        )
        picture_indices = self._random.integers(len(self._pictures.scenes), size=count)
        tone_indices = self._random.integers(len(self._tones.words), size=count)
        return [self._question(*one) for one in zip(map(str, kinds), picture_indices, tone_indices, strict=True)]

    def _question(self, kind: str, picture_index: int, tone_index: int) -> Question:
        scene, tones = self._pictures.scenes[picture_index], tuple(self._tones.words[tone_index].split())
        talk = dialogues.sample_question(self._random, kind, scene, tones)
        return Question(
            talk, picture_index if talk.scene else None, self._tones.features[tone_index] if talk.tones else None
        )

    def _length(self, question: Question) -> int:
        """Approximate number of ids of a question and its answer."""
        rows = 0 if question.mel is None else question.mel.shape[1] // 4
        return len(self._prompt(question.talk).ids) + rows + 16 * (question.picture is not None)

    def _prompt(self, talk: Dialogue) -> Any:
        key = (talk.system, talk.question, talk.media, talk.after)
        if key not in self._prompts:
            self._prompts[key] = self._reader.prompt(talk.messages)
        return self._prompts[key]

    def _together(self, questions: Sequence[Question]) -> Batch:
        picture_indices = [each.picture for each in questions if each.picture is not None]
        pixels = (
            pools.patches(self._pictures.pixels[torch.tensor(picture_indices)], self._generator)
            if picture_indices
            else None
        )
        side = scenes.SIDE // omni.PATCH
        grids = torch.tensor([[1, side, side]] * len(picture_indices)) if picture_indices else None
        mels = [each.mel for each in questions if each.mel is not None]
        return self._laid_out([each.talk for each in questions], pixels, grids, mels)

    def _laid_out(
        self, talks: Sequence[Dialogue], pixels: Tensor | None, grids: Tensor | None, mels: list[Tensor]
    ) -> Batch:
        lines: list[tuple[list[int], list[int], Tensor]] = []
        waiting = iter(mels)
        for talk in talks:
            lengths = [next(waiting).shape[1] if kind == "audio" else 0 for kind in talk.media]
            ids, positions = self._spread(talk, lengths)
            answer = [*self._tokenizer(talk.answer)["input_ids"], self._end]
            more = positions.max() + 1 + torch.arange(len(answer))
            lines.append((ids, answer, torch.cat([positions, more.expand(3, -1)], 1)))
        longest = max(len(ids) + len(answer) for ids, answer, _ in lines)
        token_ids = torch.full((len(lines), longest), self._pad)
        labels, places = torch.full_like(token_ids, -100), torch.zeros(3, *token_ids.shape, dtype=torch.long)
        for row, (ids, answer, positions) in enumerate(lines):
            whole = torch.tensor(ids + answer)
            token_ids[row, : len(whole)], places[:, row, : len(whole)] = whole, positions
            labels[row, len(ids) - 1 : len(whole) - 1] = whole[len(ids) :]  # each place predicts the next word
        return Batch(talks, token_ids, labels, places, pixels, grids, mels)

    def _spread(self, talk: Dialogue, frames: Sequence[int]) -> tuple[list[int], Tensor]:
        """Ids and positions [3, T] of a question in the service's layout."""
        prompt = self._prompt(talk)
        items = [self._item(kind, length) for kind, length in zip(talk.media, frames, strict=True)]
        places = [place for place, token in enumerate(prompt.ids) if token in self._placeholders.values()]
        key = (len(prompt.ids), *places, *talk.media, *frames)
        if key not in self._known:
            self._known[key] = self._reader.layout(prompt, items).positions
        rows = {self._placeholders[item.meta["modality"]]: item.embeds.shape[0] for item in items}
        return [token for token in prompt.ids for _ in range(rows.get(token, 1))], self._known[key]

    def _item(self, kind: str, frames: int) -> Encoded:
        """Return a medium with complete metadata; its embedding is not initialised."""
        side = scenes.SIDE // omni.PATCH
        if kind == "image":
            meta: dict[str, Any] = {"modality": kind, "grid_thw": [1, side, side], "n_tokens": side**2 // 4}
        else:
            meta = {"modality": kind, "audio_len": frames, "n_tokens": qwen2_5_omni.audio_rows(frames)}
        return Encoded(torch.empty(meta["n_tokens"], self._reader.width), meta)


def answered(thinker: Any, batch: Batch) -> Tensor:
    """Hidden states [B, T, H] of a batch."""
    config, embeds = thinker.config, thinker.get_input_embeddings()(batch.ids)
    if batch.pixels is not None:
        rows = torch.cat(list(thinker.get_image_features(batch.pixels, batch.grids, return_dict=True).pooler_output))
        embeds = embeds.masked_scatter((batch.ids == config.image_token_id)[..., None], rows)
    if batch.mels:
        lengths = torch.tensor([mel.shape[1] for mel in batch.mels])
        rows = thinker.audio_tower(torch.cat(list(batch.mels), 1), feature_lens=lengths).last_hidden_state
        embeds = embeds.masked_scatter((batch.ids == config.audio_token_id)[..., None], rows)
    out = thinker.model(inputs_embeds=embeds, position_ids=batch.positions, use_cache=False)
    hidden: Tensor = out.last_hidden_state
    return hidden


def _unsure(thinker: Any, batch: Batch) -> Tensor:
    """Return the sum of the cross-entropies of the right words."""
    mask = batch.labels >= 0
    logits = thinker.lm_head(answered(thinker, batch)[mask])
    return nn.functional.cross_entropy(logits, batch.labels[mask], reduction="sum")


def learn(model: Any, seed: int) -> None:
    """Train the thinker of ``model`` with its encoders, stage by stage."""
    loop.spread(model.thinker, seed)
    for place in range(len(STAGES)):
        learn_more(model, seed, place)


def learn_more(model: Any, seed: int, place: int) -> None:
    """Train one of ``STAGES``, from the end of the previous one."""
    stage = STAGES[place]
    loss = _lesson(model, Teacher(model, scenes.training_scenes(), seed + place, stage.sizes, stage.wild, stage.shares))
    matrices = loop.layers(model.thinker) if stage.muon else ()
    loop.train("thinker", model.thinker.parameters(), loss, stage.steps, stage.rate, matrices, stage.until, stage.warm)


def _lesson(model: Any, teacher: Teacher) -> Callable[[int], Tensor]:
    def loss(step: int) -> Tensor:
        batches = teacher.batches(BATCH, _PARTS)
        words = sum(int((batch.labels >= 0).sum()) for batch in batches)
        return torch.stack([_unsure(model.thinker, batch) for batch in batches]).sum() / words

    return loss


@torch.no_grad()
def examined(model: Any, seed: int, count: int = 96) -> dict[str, float]:
    """Share of right answers about unseen scenes, by kind of question.

    All words must be right. If each word is the likeliest one after the right words before it, a greedy answer is
    right.
    """
    teacher = Teacher(model, scenes.held_out_scenes(), seed, (4 * len(scenes.held_out_scenes()), count))
    shares = {}
    for kind in dialogues.SHARES:
        batch = teacher.batch(count, kind)
        likeliest = model.thinker.lm_head(answered(model.thinker, batch)).argmax(-1)
        wrong = (likeliest != batch.labels) & (batch.labels >= 0)
        shares[kind] = 1 - float(wrong.any(1).float().mean())
    return shares
