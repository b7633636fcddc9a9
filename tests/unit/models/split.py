"""A whole answer from components loaded separately, in the plainest loop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from omnibus_models.attention import Crossing, Mask
from omnibus_models.contract import Encoded, MediaEncoder, PrefillInputs, Talker, Thinker
from tests.close import choose_clearly

Media = Mapping[str, Sequence[bytes]]


@dataclass
class Thought:
    """Greedy ``ids`` and the rows that a talker needs."""

    ids: list[int]
    prefill: PrefillInputs
    prompt_rows: Tensor
    rows: list[Tensor]


def encode_files(encoders: Sequence[MediaEncoder], kinds: Sequence[str], media: Media) -> list[Encoded]:
    """Encode every file alone; ``kinds`` is the order of appearance."""
    files = {kind: iter(kind_files) for kind, kind_files in media.items()}
    embeddings = []
    for kind in kinds:
        encoder = next(each for each in encoders if kind in each.modalities)
        beside = (False,) if kind in encoder.closer and len(media[kind]) > 1 else ()
        embeddings += encoder.encode([encoder.prepare(memoryview(next(files[kind])), kind, *beside)])
    return embeddings


@torch.no_grad()
def think_greedily(
    thinker: Thinker,
    encoders: Sequence[MediaEncoder],
    messages: Sequence[Mapping[str, Any]],
    media: Media,
    max_tokens: int,
    voice: str | None = None,
) -> Thought:
    """Run prefill and greedy decoding of one request."""
    prompt = thinker.prompt(messages)
    prefill = thinker.assemble_prefill(prompt, encode_files(encoders, prompt.modalities, media))
    cache = DynamicCache()
    hidden = thinker.forward(prefill.inputs[None], prefill.positions[:, None], cache, make_prompt_mask(prefill))
    prompt_rows = thinker.talker_prompt(prefill, hidden[0], voice) if voice else torch.empty(0)
    ids = [int(choose_clearly(thinker.logits(hidden[:, -1])))]
    rows = []
    while ids[-1] not in thinker.eos and (voice or len(ids) < max_tokens):
        inputs = thinker.embed(torch.tensor([[ids[-1]]]))
        hidden = thinker.forward(inputs, _find_position(cache, prefill, thinker.axes), cache, make_step_mask(prefill))
        rows += [thinker.talker_row(inputs[:, 0], hidden[:, 0])[0]] if voice else []
        if len(ids) == max_tokens:
            break  # the last token at the limit is spoken too
        ids.append(int(choose_clearly(thinker.logits(hidden[:, -1]))))
    return Thought(ids, prefill, prompt_rows, rows)


@torch.no_grad()
def talk_greedily(talker: Talker, thought: Thought, max_codes: int, voice: str) -> list[Any]:
    """Return greedy codes, or frames, for a thought; the row of each token arrives one step after the other."""
    start = talker.start(thought.prompt_rows, thought.prefill.layout, thought.rows[0], voice)
    tail = iter([*thought.rows[1:], thought.prompt_rows[-2]])
    cache = DynamicCache()
    hidden = talker.forward(start.inputs[None], start.positions[:, None], cache, None)
    codes: list[Any] = []
    while len(codes) < max_codes:
        code = choose_clearly(talker.logits(hidden[:, -1]))
        if int(code) in talker.eos:
            break
        if talker.predictor is not None:
            rest = talker.predictor.predict_remaining(hidden[:, -1], code, choose_clearly)
            code = torch.cat([code[:, None], rest], dim=1)
        codes += code.tolist()
        row = next(tail, thought.prompt_rows[-1])
        inputs = talker.step_inputs(code, row[None])[None]
        hidden = talker.forward(inputs, _find_position(cache, start, talker.axes), cache, None)
    return codes


def make_prompt_mask(prefill: PrefillInputs) -> Mask:
    """Return the mask of a prompt in one piece."""
    return None if prefill.attention is None else prefill.attention.mask(0, len(prefill.inputs))


def make_step_mask(prefill: PrefillInputs) -> Mask:
    """Return the mask of a generated token."""
    seen_rows = None if prefill.attention is None else prefill.attention.answer_rows
    return (
        None if seen_rows is None else Crossing(None, seen_rows[None, None, None], torch.ones(1, 1, dtype=torch.bool))
    )


def _find_position(cache: DynamicCache, prefill: PrefillInputs, axes: int) -> Tensor:
    return torch.full((axes, 1, 1), cache.get_seq_length() + prefill.delta)
