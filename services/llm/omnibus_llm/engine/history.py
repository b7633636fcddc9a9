"""Prompts without the oldest messages of conversations that are too long.

Instructions, messages with media, and the last message of the user stay. Whole turns are left out first, then the
oldest calls of tools in the last turn, each with its results.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from omnibus.errors import ContextTooLong
from omnibus_models.contract import TokenizedPrompt

Messages = Sequence[Mapping[str, Any]]
_INSTRUCTIONS = ("system", "developer")


def fit_history(tokenize: Callable[[Messages], TokenizedPrompt], messages: Messages, longest: int) -> TokenizedPrompt:
    """Return the prompt of the most ``messages`` that fit ``longest`` tokens.

    If none fits, it is that of the messages that always stay. Raises ``ContextTooLong`` and ``BadRequest``.
    """
    groups = droppable_groups(messages)
    low, high = 0, len(groups)
    while low < high:
        middle = (low + high) // 2
        if _fits(tokenize, without_groups(messages, groups[:middle]), longest):
            high = middle
        else:
            low = middle + 1
    return tokenize(without_groups(messages, groups[:low]))


def _fits(tokenize: Callable[[Messages], TokenizedPrompt], messages: Messages, longest: int) -> bool:
    try:
        return len(tokenize(messages).ids) <= longest
    except ContextTooLong:
        return False


def without_groups(messages: Messages, groups: Sequence[Sequence[int]]) -> Messages:
    """Return ``messages`` without those at the positions in ``groups``."""
    positions = {position for group in groups for position in group}
    return [message for position, message in enumerate(messages) if position not in positions]


def droppable_groups(messages: Messages) -> list[list[int]]:
    """Return positions of messages that may be left out, oldest group first."""
    users = [position for position, message in enumerate(messages) if message.get("role") == "user"]
    if not users:
        return []
    turns = [_kept_apart(messages, begin, end) for begin, end in zip([0, *users], users, strict=False)]
    steps = _call_groups(messages, users[-1] + 1)
    return [group for group in [*turns, *steps[:-1]] if group]


def _kept_apart(messages: Messages, begin: int, end: int) -> list[int]:
    """Return the positions from ``begin`` to ``end``; none if a message has media."""
    positions = [each for each in range(begin, end) if messages[each].get("role") not in _INSTRUCTIONS]
    return [] if any(map(_has_media, (messages[each] for each in positions))) else positions


def _call_groups(messages: Messages, begin: int) -> list[list[int]]:
    """Return the positions from ``begin``, grouped by calls and their results."""
    groups: list[list[int]] = []
    if any(map(_has_media, messages[begin:])):
        return groups
    for position in range(begin, len(messages)):
        if messages[position].get("role") == "tool" and groups:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


def _has_media(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    parts = content if isinstance(content, list | tuple) else ()
    return any(isinstance(part, Mapping) and part.get("type", "text") != "text" for part in parts)
