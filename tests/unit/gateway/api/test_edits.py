"""Image edits: forms with files, and a composite task from a plugin that takes them."""

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import openai
import pytest
from PIL import Image

from omnibus.families import plugins
from omnibus_gateway.media.fetcher import Fetcher, FetchRules
from omnibus_gateway.openai.multipart import MAX_PARTS
from tests.unit.gateway.house import PAINTER, ToyGateway, read_error_body
from tests.unit.gateway.samples import make_sample_picture, make_sample_sound
from tests.unit.plugins.dists import Install, open_installer

EDITS = "/v1/images/edits"
EDITOR = "toy-editor"
WISH: dict[str, Any] = {"model": EDITOR, "prompt": "make it blue", "size": "64x48", "seed": "7", "steps": "2"}
_number = count()
PNG, JPEG = make_sample_picture("PNG", (40, 30)), make_sample_picture("JPEG", (64, 64))

#: Denoises by the text; all images guide its latents.
PLUGIN = """
    from typing import Any

    from omnibus.task import CompositeTask
    from omnibus.task.library import (
        DecodeImage, DecodeInputs, Denoise, DenoiseInput, DrawInput, Encode, EncodeInput, ImageOutput, TextEncode,
        TextEncodeInput,
    )

    FAMILY = {
        "components": ["vision", "text_encoder", "dit", "vae"],
        "tasks": {"vision": "encode", "text_encoder": "text-encode", "dit": "denoise", "vae": "decode-image"},
        "options": {"M": {"components": ["vision", "text_encoder", "dit", "vae"], "service": "generator"}},
        "paths": [{"options": ["M"]}],
        "composite": "MODULE:paint",
    }


    class EditInput(DrawInput):
        images: tuple[Any, ...]


    class Edit(CompositeTask):
        eye: Encode
        reader: TextEncode
        denoiser: Denoise
        decoder: DecodeImage

        def invoke(self, request: EditInput) -> ImageOutput:
            seen = [self.eye.invoke(EncodeInput(media=image)).embedding for image in request.images]
            guide = self.reader.invoke(TextEncodeInput(prompt=request.prompt, items=seen))
            made = self.denoiser.invoke(DenoiseInput(
                embeds=guide.embeds, mask=guide.mask, width=request.width, height=request.height, steps=request.steps,
                seed=request.seed, every=request.previews or 1,
            ))
            return ImageOutput(
                images=[self.decoder.invoke(DecodeInputs(latents=made.latents)).image],
                previews=[made.preview] if request.previews else [],
            )


    def paint(name, plan):
        return Edit(
            eye=Encode(model=name, component="vision"), reader=TextEncode(model=name, component="text_encoder"),
            denoiser=Denoise(model=name, component="dit"), decoder=DecodeImage(model=name, component="vae"),
        )
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    with open_installer(tmp_path / "dists", monkeypatch) as install_plugin:
        yield install_plugin


@pytest.fixture
async def edit_gateway(home: ToyGateway, install: Install) -> ToyGateway:
    module = f"editor_{next(_number)}"  # modules stay imported
    point = {plugins.FAMILIES: {"toy_edit": f"{module}:FAMILY"}}
    install(f"dist-{module}", point, **{module: PLUGIN.replace("MODULE", module)})
    home.serve(PAINTER, **{EDITOR: {"family": "toy_edit", "checkpoint": ""}})
    await home.executor(EDITOR, "M", "vision", "text_encoder", "dit", "vae", text_encoder=embed_prompt)
    return home


async def embed_prompt(job: Any) -> None:
    """Put one row per word, plus one per 100 of the images."""
    image_rows = sum(int(item.array.sum()) for item in await job.value("items")) // 100
    rows = len(job.inputs["prompt"].split()) + image_rows
    await job.put("embeds", {}, np.ones((1, rows, 4), np.float32))
    await job.put("mask", {}, np.ones((1, rows), np.bool_))


def sum_images(*files: bytes) -> int:
    """Return the toy encoder's total for these images."""
    return sum(4 * (1 + len(file) // 1024) * (sum(file) % 1000) for file in files) // 100


async def post_edit(home: ToyGateway, *files: bytes, **more: Any) -> httpx.Response:
    parts = [("image[]" if len(files) > 1 else "image", ("a.png", file, "image/png")) for file in files]
    return await home.http.post(EDITS, data={**WISH, **more}, files=parts)


async def test_a_picture_is_made_of_a_text_and_a_picture(edit_gateway: ToyGateway):
    response = await post_edit(edit_gateway, PNG)

    assert response.status_code == 200, response.text
    [image] = response.json()["data"]
    picture = Image.open(io.BytesIO(base64.b64decode(image["b64_json"])))
    assert picture.size == (64, 48)
    assert np.asarray(picture)[0, 0].tolist() == [7, (3 + sum_images(PNG)) % 256, 0]
    await edit_gateway.emptied()


@pytest.mark.parametrize("way", ["edit", "chat"])
async def test_the_deadline_holds_while_pictures_are_fetched(
    edit_gateway: ToyGateway, monkeypatch: pytest.MonkeyPatch, way: str
):
    """A fetch alone may take 15 s."""
    edit_gateway.chat._fetcher = Fetcher(FetchRules(allow_http=True, allow_private=True, ports=None))
    monkeypatch.setattr(edit_gateway.runs, "settings", msgspec.structs.replace(edit_gateway.settings, deadline=0.5))
    async with silent_server() as url:
        if way == "edit":
            wish = {name: WISH[name] for name in ("model", "prompt")}
            response = await edit_gateway.http.post(EDITS, json={**wish, "images": [{"image_url": url}]})
        else:
            picture = {"type": "image_url", "image_url": {"url": url}}
            message = {"role": "user", "content": [{"type": "text", "text": "make it blue"}, picture]}
            body = {"model": EDITOR, "messages": [message], "modalities": ["image"]}
            response = await edit_gateway.http.post("/v1/chat/completions", json=body)

    assert (response.status_code, read_error_body(response)["code"]) == (504, "deadline_exceeded"), response.text
    await edit_gateway.emptied()


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """Yield the URL of a file on a server that never responds."""
    over = asyncio.Event()

    async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/a.png"
    finally:
        over.set()
        server.close()


async def test_several_pictures_are_all_seen(edit_gateway: ToyGateway):
    response = await post_edit(edit_gateway, PNG, JPEG)

    [image] = response.json()["data"]
    picture = Image.open(io.BytesIO(base64.b64decode(image["b64_json"])))
    assert np.asarray(picture)[0, 0].tolist() == [7, (3 + sum_images(PNG, JPEG)) % 256, 0]
    await edit_gateway.emptied()


async def test_a_stream_says_that_it_is_an_edit(edit_gateway: ToyGateway):
    response = await post_edit(edit_gateway, PNG, stream="true", partial_images="1", steps="4")

    assert [line for line in response.text.split("\n") if line.startswith("event")] == [
        "event: image_edit.partial_image",
        "event: image_edit.completed",
    ]
    await edit_gateway.emptied()


async def test_the_official_client_sends_what_is_read(edit_gateway: ToyGateway):
    client = openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="x", http_client=edit_gateway.http, max_retries=0)

    several = await client.images.edit(
        model=EDITOR, prompt="make it blue", image=[PNG, JPEG], size="64x48", extra_body={"steps": 2, "seed": 7}
    )

    assert several.data is not None
    assert several.data[0].b64_json == (await post_edit(edit_gateway, PNG, JPEG)).json()["data"][0]["b64_json"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": PAINTER}, "image"),
        ({"prompt": ""}, "prompt"),
        ({"n": "many"}, "n"),
        ({"n": "11"}, "n"),
        ({"size": "big"}, "size"),
        ({"input_fidelity": "high"}, "input_fidelity"),
        ({"quality": "high"}, "quality"),
        ({"partial_images": "1"}, "partial_images"),
        ({"svg[model]": "x"}, "svg[model]"),
    ],
)
async def test_fields_that_cannot_be_obeyed_are_refused_by_name(
    edit_gateway: ToyGateway, changes: dict[str, str], param: str
):
    response = await post_edit(edit_gateway, PNG, **changes)

    assert response.status_code == 400, response.text
    assert read_error_body(response)["param"] == param
    await edit_gateway.emptied()


@pytest.mark.parametrize(
    ("file", "code"),
    [
        (b"", "bad_media"),
        (b"no picture", "bad_media"),
        (PNG[:20], "bad_media"),
        (make_sample_sound("wav", "pcm_s16le", 0.1), "bad_media"),
        (PNG[:16] + (30_000).to_bytes(4, "big") * 2 + PNG[24:], "too_large"),
    ],
)
async def test_files_that_are_no_pictures_are_refused_before_anything_decodes_them(
    edit_gateway: ToyGateway, file: bytes, code: str
):
    response = await post_edit(edit_gateway, file)

    assert response.status_code == (413 if code == "too_large" else 400)
    assert (read_error_body(response)["code"], read_error_body(response)["param"]) == (code, "image")
    await edit_gateway.emptied()


async def test_a_mask_is_refused_where_nothing_takes_one(edit_gateway: ToyGateway):
    response = await edit_gateway.http.post(EDITS, data=WISH, files={"image": PNG, "mask": PNG})

    assert (response.status_code, read_error_body(response)["param"]) == (400, "mask")


async def test_without_a_picture_there_is_nothing_to_edit(edit_gateway: ToyGateway):
    response = await edit_gateway.http.post(EDITS, data=WISH, files={"mask": PNG})

    assert response.status_code == 400


async def test_more_pictures_than_a_model_takes_are_refused(edit_gateway: ToyGateway):
    response = await post_edit(edit_gateway, *[PNG] * 17)

    assert (response.status_code, read_error_body(response)["param"]) == (400, "image")


async def test_a_model_that_edits_makes_nothing_of_text_alone(edit_gateway: ToyGateway):
    response = await edit_gateway.http.post("/v1/images/generations", json={"model": EDITOR, "prompt": "a boat"})

    assert (response.status_code, read_error_body(response)["param"]) == (400, "image")


async def test_too_large_a_body_is_refused(edit_gateway: ToyGateway):
    response = await edit_gateway.http.post(
        EDITS, content=b"x" * (65 << 20), headers={"content-type": "multipart/form-data"}
    )

    assert response.status_code == 413


BOUNDARY = b"xyz"
PART = b'--xyz\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nhello\r\n'


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (PART + b"--xyz--\r\n", "application/json"),
        (PART + b"--xyz--\r\n", "multipart/form-data"),
        (PART + b"--xyz--\r\n", "multipart/form-data; boundary="),
        (PART + b"--xyz--\r\n", 'multipart/form-data; boundary="a\u00e4"'),
        (b"", "multipart/form-data; boundary=xyz"),
        (b"--xyz", "multipart/form-data; boundary=xyz"),
        (PART, "multipart/form-data; boundary=xyz"),
        (b"junk" + PART + b"--xyz--", "multipart/form-data; boundary=xyz"),
        (PART.replace(b"\r\n\r\n", b"\r\n") + b"--xyz--", "multipart/form-data; boundary=xyz"),
        (PART.replace(b"name=", b"nome=") + b"--xyz--", "multipart/form-data; boundary=xyz"),
        (PART.replace(b"form-data;", b"attachment;") + b"--xyz--", "multipart/form-data; boundary=xyz"),
        (PART.replace(b"hello", b"\xff") + b"--xyz--", "multipart/form-data; boundary=xyz"),
        (PART + PART + b"--xyz--", "multipart/form-data; boundary=xyz"),
        (b"--xyz\r\n" + b"a" * 5000 + b"\r\n\r\n\r\n--xyz--", "multipart/form-data; boundary=xyz"),
    ],
)
async def test_forms_that_are_none_are_refused(edit_gateway: ToyGateway, body: bytes, kind: str):
    response = await edit_gateway.http.post(EDITS, content=body, headers={"content-type": kind.encode()})

    assert response.status_code == 400, response.text


async def test_forms_of_endless_parts_are_refused(edit_gateway: ToyGateway):
    many = b"".join(PART.replace(b"prompt", b"p%d" % number) for number in range(MAX_PARTS + 1)) + b"--xyz--"

    kind = {"content-type": "multipart/form-data; boundary=xyz"}
    response = await edit_gateway.http.post(EDITS, content=many, headers=kind)

    assert response.status_code == 413


async def test_an_edit_that_nobody_waits_for_ends(edit_gateway: ToyGateway):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await post_edit(edit_gateway, PNG)

    await edit_gateway.emptied()


async def test_pictures_may_be_named_by_the_ids_of_files(edit_gateway: ToyGateway):
    data = {**WISH, "seed": 7, "steps": 2}
    upload_response = await edit_gateway.http.post(EDITS, data=WISH, files={"image": ("a.png", PNG)})
    file = await edit_gateway.http.post("/v1/files", files={"file": ("a.png", PNG)}, data={"purpose": "vision"})

    reference_response = await edit_gateway.http.post(EDITS, json={**data, "images": [{"file_id": file.json()["id"]}]})
    empty = await edit_gateway.http.post(EDITS, json={**data, "images": [{}]})
    unknown = await edit_gateway.http.post(EDITS, json={**data, "images": [{"file_id": f"file-{'0' * 48}"}]})

    assert upload_response.status_code == 200, upload_response.text
    assert reference_response.json()["data"] == upload_response.json()["data"]
    assert (empty.status_code, read_error_body(empty)["param"]) == (400, "images[0]")
    assert unknown.status_code == 404
