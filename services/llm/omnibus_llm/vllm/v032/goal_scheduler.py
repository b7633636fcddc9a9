"""vLLM's schedulers with a budget of tokens from goals and measured steps.

A step has a token of every sequence that decodes, and as many prompt tokens as its time allows. vLLM's own budget is
one number for all steps. Prompts are ordered by their due times, which requests carry as their priority.
"""

import time
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from omnibus.executor.step_budget import StepGoals
from omnibus_llm.vllm.step_costs import StepMeter

#: The goals' name in vLLM's additional configuration.
GOALS = "omnibus_goals"


class _BudgetedSteps(Scheduler):
    """Mixed into a scheduler: sets the tokens of each step before scheduling it, and times it."""

    max_num_scheduled_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._most_tokens = self.max_num_scheduled_tokens
        self._meter = StepMeter(StepGoals(*self.vllm_config.additional_config[GOALS]), self._most_tokens)
        self._ended = 0.0

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        begin_time = time.monotonic()
        # Sequences that decode come first: a prompt before one could take its token.
        self.running.sort(key=lambda request: request.is_prefill_chunk)
        decoding = {request.request_id for request in self.running if not request.is_prefill_chunk}
        self.max_num_scheduled_tokens = min(self._most_tokens, len(decoding) + self._meter.token_limit(len(decoding)))
        output = super().schedule(throttle_prefills)
        decodes = len(decoding & output.num_scheduled_tokens.keys())
        # Kept with the step: with asynchronous scheduling the next one is chosen before this one ends.
        output.omnibus_step = (begin_time, decodes, output.total_num_scheduled_tokens - decodes)
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        begin_time, decodes, prompt_tokens = scheduler_output.omnibus_step
        now = time.monotonic()
        if decodes or prompt_tokens:
            self._meter.add_step(decodes, prompt_tokens, now - max(begin_time, self._ended))
        self._ended = now
        return super().update_from_output(scheduler_output, model_runner_output)


class GoalScheduler(_BudgetedSteps):
    """For steps that follow each other."""


class AsyncGoalScheduler(_BudgetedSteps, AsyncScheduler):
    """For steps that are chosen during the previous one."""
