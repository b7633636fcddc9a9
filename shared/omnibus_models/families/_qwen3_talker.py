"""The talker of Qwen3-Omni: users' input and an answer's text to frames of codes."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from omnibus_models.contract import PrefillInputs, TokenSamplingParams
from omnibus_models.families import _omni_audio, _qwen

_BANNED_ID_COUNT = 1024  # ids at the end of the vocabulary that are not codes, as in the library


class Qwen3CodePredictor:
    """The remaining codes of a frame, group by group, see ``contract.CodePredictor``."""

    # As in the library, independent of the talker's own sampling.
    sampling = TokenSamplingParams(max_tokens=0, temperature=1.0, top_p=0.8, top_k=50)

    def __init__(self, module: Any, first: Callable[[Tensor], Tensor]) -> None:
        self._module = module
        self._first = first  # embeds codes of the first group
        self.vocabulary: int = module.config.vocab_size
        self.rest = len(module.lm_head)

    @property
    def embedding_tables(self) -> Sequence[Callable[[Tensor], Tensor]]:
        """Return the embeddings of the codes of each of the other groups."""
        tables: Sequence[Callable[[Tensor], Tensor]] = self._module.get_input_embeddings()
        return tables

    @torch.no_grad()
    def predict_remaining(self, hidden: Tensor, codes: Tensor, choose: Callable[[Tensor], Tensor]) -> Tensor:
        """Predict codes from [B, H'] and [B]: [B, groups - 1]."""
        inputs = torch.stack([hidden, self._first(codes)], dim=1)
        cache, predictions = DynamicCache(config=self._module.config), []
        for head, table in zip(self._module.lm_head, self.embedding_tables, strict=True):
            out = self._module.model(inputs_embeds=inputs, past_key_values=cache, use_cache=True)
            predictions.append(choose(head(out.last_hidden_state[:, -1]).float()))
            inputs = table(predictions[-1])[:, None]
        return torch.stack(predictions, dim=1)


class Qwen3Talker(_qwen.QwenDecoder):
    """Thinker rows in, frames of codes out, see ``contract.Talker``."""

    bunch = 4  # a third of a second; the vocoder could use single ones

    def __init__(self, module: Any, max_codes: int, steps_per_second: float) -> None:
        super().__init__(module, module.model, module.codec_head, {module.config.codec_eos_token_id})
        self.max_codes = max_codes
        self.steps_per_second = steps_per_second
        self.predictor = Qwen3CodePredictor(module.code_predictor, self.embed)
        self._text, self._media = module.text_projection, module.hidden_projection
        is_banned = torch.arange(self.vocabulary, device=self.device) >= self.vocabulary - _BANNED_ID_COUNT
        is_banned[list(self.eos)] = False
        self._banned = is_banned

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits [B, V] of [B, H']; only codes are sampled."""
        return super().logits(hidden).masked_fill(self._banned, -math.inf)

    @torch.no_grad()
    def start(self, rows: Tensor, layout: Tensor, first: Tensor, voice: str) -> PrefillInputs:
        """Build the first inputs.

        They are the users' input, the answer's beginning, silence, begin of speech and the first token. The codec's
        marks are added to all after the beginning.
        """
        module: Any = self.module
        config = module.config
        rows, layout = rows.to(self.device, self.dtype), layout.to(self.device)
        prompt, (begin, _, pad) = rows[:-3], rows[-3:]
        prompt_rows = torch.where((layout[1] > 0)[:, None], self._media(prompt), self._text(prompt))
        marks = [
            config.codec_nothink_id,
            config.codec_think_bos_id,
            config.codec_think_eos_id,
            speaker_code(config, voice),
            config.codec_pad_id,
            config.codec_bos_id,
        ]
        speech = torch.stack([pad, pad, pad, pad, begin, first.to(self.device, self.dtype)])
        speech_rows = self._text(speech) + self.embed(torch.tensor(marks, device=self.device))
        inputs = torch.cat([prompt_rows, speech_rows])
        more = layout[2:].max() + torch.arange(1, len(marks) + 1, device=self.device)
        places = torch.cat([layout[2:], more.expand(self.axes, -1)], dim=1)
        delta = int(places.max()) + 1 - len(inputs)
        return PrefillInputs(inputs, places, delta, torch.zeros(len(inputs), dtype=torch.bool, device=self.device))

    @torch.no_grad()
    def step_inputs(self, codes: Tensor, rows: Tensor) -> Tensor:
        """Combine frames [B, groups] and thinker ``rows`` [B, H] to [B, H']."""
        groups = zip([self.embed, *self.predictor.embedding_tables], codes.unbind(1), strict=True)
        frames = torch.stack([table(code) for table, code in groups], dim=1).sum(1)
        return frames + self._text(rows.to(self.device, self.dtype))


def speaker_code(talker: Any, voice: str) -> int:
    """Return the code of ``voice``, ignoring case."""
    speaker_ids: Mapping[str, int] = talker.speaker_id
    _omni_audio.require_voice(voice.lower(), speaker_ids)
    return speaker_ids[voice.lower()]
