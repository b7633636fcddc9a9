"""Formats of tool calls, one a module: ``FORMAT`` of each is a ``base.ToolFormat``.

A family says which one its models write, or its checkpoint's chat template does; a plugin names ``module:object``.
"""

from importlib import import_module

from omnibus.errors import BadRequest
from omnibus_models.tool_calls.base import CallParser, Parsed, Tool, ToolFormat

__all__ = ["USUAL", "CallParser", "Parsed", "Tool", "ToolFormat", "detect_format", "find_format"]

#: What a chat template that writes calls in a format has in it; the first that fits counts.
_SIGNS = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama3": '"parameters": '}
#: The format of models whose template says nothing of tools: it needs no special tokens, and most have seen it.
USUAL = "hermes"


def find_format(name: str) -> ToolFormat:
    """The format ``name``: a module of this package, or ``module:object``. Raises ``BadRequest``."""
    module, _, attribute = name.partition(":")
    try:
        found: ToolFormat = getattr(
            import_module(module if attribute else f"{__name__}.{module}"), attribute or "FORMAT"
        )
    except (ImportError, AttributeError) as error:
        raise BadRequest(f"there is no format of tool calls {name!r}: {error}") from None
    return found


def detect_format(template: str, untold: str = USUAL) -> str:
    """The name of the format that a chat ``template`` writes calls in; ``untold`` for one that says nothing of them."""
    return next((name for name, sign in _SIGNS.items() if sign in template), untold)
