"""What is added to vLLM's workers."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from vllm.distributed.parallel_state import get_pp_group, get_tp_group

from services.llm.vllm_032.prompts import DELTA, POSITIONS
from services.llm.vllm_032.tap import Rows


class Worker:
    """Mixed into the worker's class; called once, by name, before the first request."""

    model_runner: Any

    def omnibus_begin(self, rows: bool) -> int:
        """Take positions as requests bring them and, with ``rows``, write hidden rows.

        Returns how many parameters this worker holds.
        """
        runner = self.model_runner
        model = runner.get_model()
        if hasattr(model, "get_mrope_input_positions"):
            model.get_mrope_input_positions = _brought(model.get_mrope_input_positions)
        # One worker has the rows, and has them whole.
        if rows and get_tp_group().is_first_rank and get_pp_group().is_last_rank:
            runner._model_forward = Rows(runner, runner._model_forward)
        return sum(parameter.numel() for parameter in model.parameters())


class Rewinding(torch.Generator):
    """A CPU's generator that can be rewound.

    vLLM draws a token for each step of a prompt and takes all draws but the last one back, by an offset
    that generators of a CPU do not have. Before the last step nothing else was drawn.
    """

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> torch.Generator:
        return self.manual_seed(self.initial_seed())


def _brought(count: Callable[..., tuple[torch.Tensor, int]]) -> Callable[..., tuple[torch.Tensor, int]]:
    # vLLM's own positions differ from the library's for videos; one truth is enough, and the family has it.
    def positions(ids: Sequence[int], features: Sequence[Any]) -> tuple[torch.Tensor, int]:
        for feature in features:
            if feature.data is not None and POSITIONS in feature.data:
                return feature.data[POSITIONS].data.long(), int(feature.data[DELTA].data)
        return count(ids, features)

    return positions
