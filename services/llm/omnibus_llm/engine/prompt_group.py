"""Prompts shared by several sequences of one invocation: computed for the first, copied for the others.

Members join before they read their inputs, so that none is missed. The first member whose prompt is complete offers its
keys and values, which are kept until all members have left. Members join and leave on the event loop. The compute
thread looks at them once for each prompt.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor
from transformers.cache_utils import DynamicCache

from omnibus.executor.runner import Job
from omnibus_models.contract import PromptOptions

#: Inputs of a call that make its prompt, in addition to the options of the chat template.
PROMPT_INPUTS = ("messages", "items")


class FilledPrompt(NamedTuple):
    """Keys and values of a prompt, and its last hidden row [1, H]."""

    cache: DynamicCache
    hidden: Tensor


class PromptGroup:
    """Sequences that start with one prompt, computed with one adapter or none."""

    def __init__(self, options: PromptOptions, adapter: str) -> None:
        self.options = options
        self.adapter = adapter
        self.members: set[PromptMember] = set()
        self.filled: FilledPrompt | None = None


class PromptMember:
    """One of a group, until its prompt is computed or copied."""

    def __init__(self, group: PromptGroup) -> None:
        self.group = group
        self.sequence: Any = None  # None until its inputs are read
        group.members.add(self)

    @property
    def filled(self) -> FilledPrompt | None:
        """The prompt, if another member has computed it. It is available until this member leaves."""
        return self.group.filled

    def offer_prompt(self, cache: DynamicCache, hidden: Tensor) -> None:
        """Offer the prompt to members that wait for it. Runs in the compute thread."""
        if self.group.filled is None and len(self.group.members) > 1:
            self.group.filled = FilledPrompt(cache, hidden)

    def leave_group(self) -> None:
        """Leave the group. Leaving twice is harmless."""
        self.group.members.discard(self)
        if not self.group.members:
            self.group.filled = None

    def waiting(self) -> Iterator[Any]:
        """Yield the sequences that can copy the prompt."""
        if self.group.filled is not None:
            yield from (each.sequence for each in self.group.members if each.sequence is not None)


class PromptGroups:
    """The groups of all current invocations."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, int], PromptGroup] = {}

    @contextmanager
    def join(self, job: Job, options: PromptOptions, adapter: str = "") -> Iterator[PromptMember | None]:
        """Join the calls with the prompt of ``job``, until the block ends; yields None without others.

        ``options`` are those of the chat template; ``adapter`` is the adapter that computes the prompt.
        """
        first = job.first_equal_call(PROMPT_INPUTS)
        if first is None:
            yield None
            return
        key = (job.invocation, first)
        group = self._groups.setdefault(key, PromptGroup(options, adapter))
        if (group.options, group.adapter) != (options, adapter):
            yield None
            return
        member = PromptMember(group)
        try:
            yield member
        finally:
            member.leave_group()
            if not group.members and self._groups.get(key) is group:
                del self._groups[key]
