"""The grammar of an answer, from the requirements of its request."""

from functools import lru_cache

from omnibus.errors import BadRequest
from omnibus.structured.grammar import find_error, first_line
from omnibus.structured.rewrites import SchemaError
from omnibus.structured.shapes import GRAMMAR, shape_rule, whole_grammar
from omnibus_llm.engine.params import TextGenerationParams
from omnibus_models.contract import Reader


def answer_grammar(reader: Reader, params: TextGenerationParams) -> str | None:
    """Return the Lark grammar of answers to ``params``; None if any text is valid. Raises ``BadRequest``."""
    try:
        return _write_grammar(reader, params)
    except SchemaError as error:
        raise BadRequest(f"the schema cannot be used: {error}", param="response_format") from None


def _write_grammar(reader: Reader, params: TextGenerationParams) -> str | None:
    rules = []
    if params.structured_outputs is not None:
        if GRAMMAR in params.structured_outputs:
            return _read_grammar(params)
        rules.append(("json", f"json: {shape_rule(params.structured_outputs)}\n"))
    if params.tools and (params.tool_choice == "required" or rules):
        if params.tool_choice == "required":
            rules.clear()
        tools = [each for each in params.tools if not params.allowed_tools or _name(each) in params.allowed_tools]
        rules.append(("calls", reader.tool_format.grammar(tools, params.parallel_tool_calls, reader.special_id)))
    if not rules:
        return None
    return f"start: {' | '.join(name for name, _ in rules)}\n{''.join(rule for _, rule in rules)}"


def _read_grammar(params: TextGenerationParams) -> str:
    if params.tools and params.tool_choice == "required":
        raise BadRequest("required tool calls have the grammar of the tools; remove tools", param="structured_outputs")
    try:
        return whole_grammar(params.structured_outputs or {})
    except ValueError as error:
        raise BadRequest(f"the grammar cannot be read: {error}", param="structured_outputs") from None


@lru_cache(maxsize=256)
def check_grammar(grammar: str) -> None:
    """Raise ``BadRequest`` for an invalid ``grammar``. This takes time: never call it on an event loop."""
    error = find_error(grammar)
    if error:
        raise BadRequest(f"the schema cannot be used: {first_line(error)}", param="response_format")


def _name(tool: dict[str, object]) -> object:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else None
