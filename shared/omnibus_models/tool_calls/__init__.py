"""Formats of tool calls, one a module: ``FORMAT`` of each is a ``base.ToolFormat``.

A family, or its checkpoint's chat template, determines the format of its models; a plugin names ``module:object``.
"""

from importlib import import_module

from omnibus.errors import BadRequest
from omnibus_models.tool_calls.base import CallParser, Parsed, Tool, ToolFormat

__all__ = ["USUAL", "CallParser", "Parsed", "Tool", "ToolFormat", "detect_format", "find_format"]

#: Text by which a chat template's format is recognised; the first match counts.
_SIGNS = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama3": '"parameters": '}
#: The format of models whose template does not support tools. It needs no special tokens, and most know it.
USUAL = "hermes"


def find_format(name: str) -> ToolFormat:
    """Return the format ``name``: a module of this package, or ``module:object``. Raises ``BadRequest``."""
    module, _, attribute = name.partition(":")
    try:
        tool_format: ToolFormat = getattr(
            import_module(module if attribute else f"{__name__}.{module}"), attribute or "FORMAT"
        )
    except (ImportError, AttributeError) as error:
        raise BadRequest(f"unknown format of tool calls {name!r}: {error}") from None
    return tool_format


def detect_format(template: str, untold: str = USUAL) -> str:
    """Return the name of a chat ``template``'s format of calls.

    It is ``untold`` for a template without calls.
    """
    return next((name for name, sign in _SIGNS.items() if sign in template), untold)
