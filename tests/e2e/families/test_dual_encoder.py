"""A running system embeds texts and images like the library."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from omnibus.families import catalog
from omnibus_models import tiny
from tests.auto_families.dual_encoders import TEXTS, draw_files, embed_images, embed_texts, write_checkpoint
from tests.close import assert_close
from tests.e2e.system import System, declare_model, start_system
from tests.e2e.vl.test_records import run_command

pytestmark = pytest.mark.e2e

CLIP, SIGLIP = "dual-encoder-tiny", "siglip-tiny"
APART, TOGETHER = "E>B", "EB"
#: How the library pads texts of these models.
LENGTHS: dict[str, dict[str, Any]] = {CLIP: {}, SIGLIP: {"padding": "max_length", "max_length": 64}}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("checkpoints")
    siglip = write_checkpoint("siglip", directory / "siglip")
    return {CLIP: tiny.build("dual_encoder", directory / "clip"), SIGLIP: siglip}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path]) -> Iterator[System]:
    together = {TOGETHER: catalog.find_family("dual_encoder")["options"][TOGETHER]}
    models = {
        CLIP: declare_model("dual_encoder", checkpoints[CLIP]),
        SIGLIP: declare_model("dual_encoder", checkpoints[SIGLIP], options=together, paths=[{"options": [TOGETHER]}]),
    }
    with start_system(tmp_path_factory.mktemp("items"), models) as new_system:
        yield new_system


@pytest.mark.numeric
@pytest.mark.cell("transformers", "dual_encoder", "vectors", shape=(APART, TOGETHER))
@pytest.mark.parametrize(("model", "path"), [(CLIP, APART), (CLIP, TOGETHER), (SIGLIP, TOGETHER)])
async def test_vectors_are_those_of_the_library(system: System, checkpoints: dict[str, Path], model: str, path: str):
    await system.becomes_ready()
    files = draw_files()
    images = [{"image": base64.b64encode(file).decode()} for file in files]
    items = [images[0], *TEXTS, images[1], images[0]]

    async with system.http() as http:
        request = {"model": model, "input": items}
        response = await http.post("/v1/embeddings", json=request, headers={"x-omnibus-path": path})
    code, replay = await run_command(system, "replay", response.headers["x-request-id"])

    assert response.status_code == 200, response.text
    body = response.json()
    library: Any = transformers.AutoModel.from_pretrained(checkpoints[model]).eval()
    processor = transformers.AutoProcessor.from_pretrained(checkpoints[model])
    texts = embed_texts(library, processor, TEXTS, **LENGTHS[model])
    first, second = embed_images(library, processor, files)
    found = np.array([each["embedding"] for each in body["data"]], np.float32)
    assert_close(found, torch.stack([first, *texts, second, first]))
    assert body["usage"]["prompt_tokens"] == count_tokens(library.config, processor)
    assert response.headers["x-omnibus-path"] == path
    assert (code, "identical to the recorded answer" in replay) == (0, True), replay
    await system.ledger_is_empty()


def count_tokens(config: Any, processor: Any) -> int:
    """Return the tokens of the texts and of three images."""
    vision = config.vision_config
    patches = (vision.image_size // vision.patch_size) ** 2 + (config.model_type == "clip")
    return sum(len(processor.tokenizer(text)["input_ids"]) for text in TEXTS) + 3 * patches
