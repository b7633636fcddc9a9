"""A search by meaning: it orders texts by the likeness of their embeddings to that of a query."""

from pydantic import BaseModel

from omnibus.app import App
from omnibus.task.library import Embed, TextEmbedding, TextInput, Vectors

app = App(model="search")


class Search(BaseModel):
    query: str
    texts: list[str]


class Found(BaseModel):
    text: str
    #: Cosine of the angle between the embeddings, from -1 to 1.
    score: float


EMBEDDING = TextEmbedding(embedder=Embed(model="minilm", component="embedder"))


async def serve(request: Search) -> list[Found]:
    vectors = await (await EMBEDDING(TextInput(text=[request.query, *request.texts]))).embedding
    scores = (vectors[1:] @ vectors[0]).tolist()
    results = [Found(text=text, score=score) for text, score in zip(request.texts, scores, strict=True)]
    return sorted(results, key=lambda each: -each.score)


async def embed(request: TextInput) -> Vectors:
    return await EMBEDDING(request)
