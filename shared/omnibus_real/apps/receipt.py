"""A reader of receipts: it reads the text of an image, and a language model writes it as JSON of a schema."""

from collections.abc import Mapping

from pydantic import BaseModel

from omnibus.app import App
from omnibus.task import ChatInput, ChatOutput, CompositeTask, Think
from omnibus.task.library import TextParams, ThinkInput
from omnibus_real import ImageToRead, ReadImage

app = App(model="receipt", input_modalities=("text", "image"), output_modalities=("text",))


class Receipt(BaseModel):
    """The answer, unless the request has a schema (``response_format``)."""

    shop: str
    date: str
    total: float


class ReceiptReader(CompositeTask[ChatInput, ChatOutput]):
    reader: ReadImage = ReadImage()
    writer: Think = Think(model="smollm2", component="thinker")

    async def invoke(self, request: ChatInput) -> ChatOutput:
        texts = [await self.reader.invoke(ImageToRead(media=image)).text for image in request.media]
        prompt = "\n".join(texts) + "\n\nWrite the shop, the date and the total of this receipt as JSON."
        params: TextParams = {"structured_outputs": {"json": Receipt.model_json_schema()}, "max_tokens": 100}
        if isinstance(request.params, Mapping):
            params = {**params, **request.params}
        answer = self.writer.invoke(ThinkInput(messages=[{"role": "user", "content": prompt}], params=params))
        return ChatOutput(text=answer.text)


RECEIPT_READER = ReceiptReader()


async def serve(request: ChatInput) -> ChatOutput:
    return await RECEIPT_READER(request)
