"""To see, to hear and to answer: encoders and thinker learn together from the next word of right answers."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from omnibus_models.contract import Encoded
from omnibus_models.families import qwen2_5_omni
from omnibus_models.world import omni, scenes, talks
from omnibus_models.world.scenes import Scene
from omnibus_models.world.talks import Talk
from omnibus_models.world.training import loop, pools

STEPS, BATCH, RATE = 3000, 48, 2e-3
_PICTURES, _TONES, _SPEECHES = 12_000, 1_500, 2_500


@dataclass(frozen=True)
class Batch:
    """Questions and answers beside one another, short ones padded at their end.

    ``ids`` and ``labels`` [B, T], the latter -100 but for answers; ``positions`` [3, B, T]; ``pixels`` [patches, n]
    and ``mels`` of all media in their order.
    """

    talks: Sequence[Talk]
    ids: Tensor
    labels: Tensor
    positions: Tensor
    pixels: Tensor | None
    grids: Tensor | None
    mels: Sequence[Tensor]


class Teacher:
    """Asks, and knows the answers. ``of`` are the scenes that it shows."""

    def __init__(
        self, model: Any, of: Sequence[Scene], seed: int, sizes: tuple[int, int, int] = (_PICTURES, _TONES, _SPEECHES)
    ) -> None:
        with tempfile.TemporaryDirectory() as directory:
            omni.save(omni.build(seed), Path(directory))
            self._hearing = qwen2_5_omni.FAMILY.load("audio", Path(directory))
            self._reader = qwen2_5_omni.Thinker(model.thinker, Path(directory), model.config.talker_config)
        self._of, self._random = of, np.random.default_rng(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self._pictures = pools.pictures(of, sizes[0], seed)
        self._tones = pools.tones(self._hearing, sizes[1], seed)
        self._speeches = pools.speeches(self._hearing, of, sizes[2], seed)
        config = model.thinker.config
        self._placeholders = {"image": config.image_token_id, "audio": config.audio_token_id}
        self._known: dict[Any, Tensor] = {}
        self._tokenizer = omni.tokenizer()
        self._pad, self._end = self._tokenizer.pad_token_id, self._tokenizer.eos_token_id

    def batch(self, count: int, kind: str = "") -> Batch:
        """``count`` questions, of one ``kind`` or of all."""
        chosen = (
            [kind] * count if kind else self._random.choice(list(talks.SHARES), count, p=list(talks.SHARES.values()))
        )
        shown = self._random.integers(len(self._pictures.scenes), size=count)
        heard = self._random.integers(len(self._tones.words), size=count)
        said = self._random.integers(len(self._speeches.words), size=count)
        asked = [self._ask(*one) for one in zip(map(str, chosen), shown, heard, said, strict=True)]
        seen = [index for talk, index in zip(asked, shown, strict=True) if talk.scene]
        mels = [
            self._speeches.features[speech] if talk.speech else self._tones.features[tone]
            for talk, tone, speech in zip(asked, heard, said, strict=True)
            if talk.speech or talk.tones
        ]
        pixels = pools.patches(self._pictures.pixels[torch.tensor(seen)], self._generator) if seen else None
        side = scenes.SIDE // omni.PATCH
        grids = torch.tensor([[1, side, side]] * len(seen)) if seen else None
        return self._laid_out(asked, pixels, grids, mels)

    def _ask(self, kind: str, shown: int, heard: int, said: int) -> Talk:
        scene, tones = self._pictures.scenes[shown], tuple(self._tones.words[heard].split())
        return talks.asked(self._random, kind, scene, tones, self._speeches.words[said])

    def _laid_out(
        self, asked: Sequence[Talk], pixels: Tensor | None, grids: Tensor | None, mels: list[Tensor]
    ) -> Batch:
        lines: list[tuple[list[int], list[int], Tensor]] = []
        waiting = iter(mels)
        for talk in asked:
            lengths = [next(waiting).shape[1] if kind == "audio" else 0 for kind in talk.media]
            ids, positions = self._question(talk, lengths)
            answer = [*self._tokenizer(talk.answer)["input_ids"], self._end]
            more = positions.max() + 1 + torch.arange(len(answer))
            lines.append((ids, answer, torch.cat([positions, more.expand(3, -1)], 1)))
        longest = max(len(ids) + len(answer) for ids, answer, _ in lines)
        padded = torch.full((len(lines), longest), self._pad)
        labels, places = torch.full_like(padded, -100), torch.zeros(3, *padded.shape, dtype=torch.long)
        for row, (ids, answer, positions) in enumerate(lines):
            whole = torch.tensor(ids + answer)
            padded[row, : len(whole)], places[:, row, : len(whole)] = whole, positions
            labels[row, len(ids) - 1 : len(whole) - 1] = whole[len(ids) :]  # each place says the next word
        return Batch(asked, padded, labels, places, pixels, grids, mels)

    def _question(self, talk: Talk, frames: Sequence[int]) -> tuple[list[int], Tensor]:
        """Ids and positions [3, T] of a question as the service lays it out."""
        prompt = self._reader.prompt(talk.messages)
        items = [self._item(kind, length) for kind, length in zip(talk.media, frames, strict=True)]
        places = [place for place, token in enumerate(prompt.ids) if token in self._placeholders.values()]
        key = (len(prompt.ids), *places, *talk.media, *frames)
        if key not in self._known:
            self._known[key] = self._reader.layout(prompt, items).positions
        rows = {self._placeholders[item.meta["modality"]]: item.embeds.shape[0] for item in items}
        return [token for token in prompt.ids for _ in range(rows.get(token, 1))], self._known[key]

    def _item(self, kind: str, frames: int) -> Encoded:
        """What the reader has to know of a medium."""
        side = scenes.SIDE // omni.PATCH
        if kind == "image":
            meta: dict[str, Any] = {"modality": kind, "grid_thw": [1, side, side], "n_tokens": side**2 // 4}
        else:
            meta = {"modality": kind, "audio_len": frames, "n_tokens": qwen2_5_omni.audio_rows(frames)}
        return Encoded(torch.empty(meta["n_tokens"], self._reader.width), meta)


def answered(thinker: Any, batch: Batch) -> Tensor:
    """Hidden states [B, T, H] of a batch."""
    config, embedded = thinker.config, thinker.get_input_embeddings()(batch.ids)
    if batch.pixels is not None:
        rows = torch.cat(list(thinker.get_image_features(batch.pixels, batch.grids, return_dict=True).pooler_output))
        embedded = embedded.masked_scatter((batch.ids == config.image_token_id)[..., None], rows)
    if batch.mels:
        lengths = torch.tensor([mel.shape[1] for mel in batch.mels])
        rows = thinker.audio_tower(torch.cat(list(batch.mels), 1), feature_lens=lengths).last_hidden_state
        embedded = embedded.masked_scatter((batch.ids == config.audio_token_id)[..., None], rows)
    out = thinker.model(inputs_embeds=embedded, position_ids=batch.positions, use_cache=False)
    hidden: Tensor = out.last_hidden_state
    return hidden


def learn(model: Any, seed: int, steps: int = STEPS) -> None:
    """Train the thinker of ``model`` with its encoders."""
    loop.spread(model.thinker, seed)
    teacher = Teacher(model, scenes.known(), seed)

    def loss(step: int) -> Tensor:
        batch = teacher.batch(BATCH)
        hidden = answered(model.thinker, batch)
        asked = batch.labels >= 0
        return nn.functional.cross_entropy(model.thinker.lm_head(hidden[asked]), batch.labels[asked])

    loop.train("thinker", model.thinker.parameters(), loss, steps, RATE)


@torch.no_grad()
def examined(model: Any, seed: int, count: int = 96) -> dict[str, float]:
    """The share of answers about scenes of no training that are right word by word, for each kind of question.

    Where each word is the likeliest one after the right words before it, a greedy answer is the right one.
    """
    teacher = Teacher(model, scenes.unseen(), seed, (4 * len(scenes.unseen()), count, count))
    found = {}
    for kind in talks.SHARES:
        batch = teacher.batch(count, kind)
        likeliest = model.thinker.lm_head(answered(model.thinker, batch)).argmax(-1)
        wrong = (likeliest != batch.labels) & (batch.labels >= 0)
        found[kind] = 1 - float(wrong.any(1).float().mean())
    return found
