"""A reader of receipts: it reads the text of an image, and a language model selects shop, date and total as JSON.

The model is small and misspells words. So the schema of its answer permits only what the receipt contains.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from omnibus.app import App
from omnibus.task import ChatInput, ChatOutput, CompositeTask, Think
from omnibus.task.library import TextParams, ThinkInput
from omnibus_real import ImageToRead, ReadImage

INSTRUCTIONS = "You copy the shop, the date and the total of a receipt into JSON."
#: A receipt and its answer, which show the model what to do.
EXAMPLE = "HILL PHARMACY\n2024-05-06\nSoap 1.50\nTea 3.25\nTOTAL 4.75"
EXAMPLE_ANSWER = {"shop": "HILL PHARMACY", "date": "2024-05-06", "total": 4.75}
_AMOUNT, _DIGIT = re.compile(r"\d+[.,]\d\d\b(?![.,]\d)"), re.compile(r"\d")

app = App(model="receipt", input_modalities=("text", "image"), output_modalities=("text",))


class ReceiptReader(CompositeTask[ChatInput, ChatOutput]):
    reader: ReadImage = ReadImage()
    writer: Think = Think(model="smollm2", component="thinker")

    async def invoke(self, request: ChatInput) -> ChatOutput:
        texts = [await self.reader.invoke(ImageToRead(media=image)).text for image in request.media]
        receipt = "\n".join(texts)
        messages = [
            {"role": "system", "content": INSTRUCTIONS},
            {"role": "user", "content": EXAMPLE},
            {"role": "assistant", "content": json.dumps(EXAMPLE_ANSWER)},
            {"role": "user", "content": receipt},
        ]
        params: TextParams = {"structured_outputs": {"json": make_schema(receipt.splitlines())}, "max_tokens": 200}
        if isinstance(request.params, Mapping):  # such as a schema of the request (``response_format``)
            params = {**params, **request.params}
        return ChatOutput(text=self.writer.invoke(ThinkInput(messages=messages, params=params)).text)


def make_schema(lines: Sequence[str]) -> dict[str, Any]:
    """Return a schema that permits only ``lines`` and amounts of a receipt."""
    amounts = [amount for line in lines for amount in _AMOUNT.findall(line)]
    dates = [line for line in lines if _DIGIT.search(line) and not _AMOUNT.search(line)]
    totals = [float(amount.replace(",", ".")) for amount in amounts]
    properties = {
        "shop": {"enum": list(dict.fromkeys(lines))} if lines else {"type": "string"},
        "date": {"enum": [*dict.fromkeys(dates), ""]},
        "total": {"enum": list(dict.fromkeys(totals))} if totals else {"type": "number"},
    }
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


RECEIPT_READER = ReceiptReader()


async def serve(request: ChatInput) -> ChatOutput:
    return await RECEIPT_READER(request)
