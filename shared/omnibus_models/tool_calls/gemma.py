"""Calls in Gemma 3's prompted form: JSON of a name and ``parameters``, often fenced."""

from omnibus_models.tool_calls.llama3 import Llama3Format, Llama3Parser

_FENCES = ("```json", "```tool_code", "```")


class GemmaFormat(Llama3Format):
    special = ()

    def open_parser(self) -> Llama3Parser:
        return Llama3Parser(_FENCES)


FORMAT = GemmaFormat()
