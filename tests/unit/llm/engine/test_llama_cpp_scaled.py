"""GGUF files with scaled positions: llama.cpp computes them, transformers would ignore them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from omnibus.cli.format.models import shortest_declaration
from omnibus.errors import BadRequest
from omnibus_models import families
from omnibus_models.examine.report import examine_checkpoint
from omnibus_models.llama_cpp_thinker import LlamaCppThinker
from tests.gguf_files import write_gguf, write_llama
from tests.unit.llm.engine.test_llama_cpp import LOGIT_BOUND

pytestmark = pytest.mark.llama_cpp

BASE, TOKENS, ORIGINAL = 1e4, 200, 64
PLAIN = {"rope_type": "default", "rope_theta": BASE}
SCALED: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
}


def load_scaled(checkpoint: Path, rope: dict[str, Any]) -> Any:
    fields = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**fields, "rope_parameters": rope}))
    return LlamaForCausalLM.from_pretrained(checkpoint).eval()


def write_scaled(checkpoint: Path, file: Path, kind: str, module: Any) -> Path:
    """Write ``checkpoint`` with the scaling as its own converter does: in fields, or in a tensor of factors."""
    if kind == "llama3":
        frequencies = module.model.rotary_emb.inv_freq
        plain = BASE ** -(torch.arange(len(frequencies)) / len(frequencies))
        return write_gguf(checkpoint, file, factors=(plain / frequencies).numpy().astype(np.float32))
    fields = {"type": kind, "factor": SCALED[kind]["factor"]}
    if kind == "yarn":
        fields["original_context_length"] = ORIGINAL
    return write_gguf(checkpoint, file, **{f"llama__rope__scaling__{name}": each for name, each in fields.items()})


@pytest.mark.numeric
@pytest.mark.parametrize("kind", SCALED)
def test_logits_are_those_of_the_checkpoint(tmp_path: Path, kind: str) -> None:
    checkpoint = write_llama(tmp_path / "it")
    plain = load_scaled(checkpoint, PLAIN)
    scaled = load_scaled(checkpoint, {"rope_type": kind, "rope_theta": BASE, **SCALED[kind]})
    file = write_scaled(checkpoint, tmp_path / "it.gguf", kind, scaled)
    ids = torch.randint(5, 500, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    thinker: Any = LlamaCppThinker(file)
    thinker.reserve_memory(1, 512, 1)

    hidden = thinker.forward(thinker.embed(ids), torch.arange(TOKENS)[None, None], thinker.new_cache(), None)
    logits = thinker.logits(hidden[:, -1])[0]

    with torch.inference_mode():
        expected, ignored = (module(ids).logits[0, -1] for module in (scaled, plain))
    assert (logits - expected).abs().max() < LOGIT_BOUND
    assert (ignored - expected).abs().max() > 10 * LOGIT_BOUND


def test_a_report_names_the_engine_and_transformers_refuses_the_file(tmp_path: Path) -> None:
    file = write_gguf(write_llama(tmp_path / "it"), tmp_path / "it.gguf", llama__rope__scaling__type="yarn")

    report = examine_checkpoint(file)
    [declaration] = shortest_declaration(report, str(file))["models"].values()

    assert report.complete
    assert "scaled positions (rope.scaling.type yarn): on llama.cpp only" in report.notes
    assert declaration["options"]["L"]["engine"] == "omnibus_engines:llama_cpp"
    with pytest.raises(BadRequest, match="scales positions .* Use the engine omnibus_engines:llama_cpp on a CPU"):
        families.family_of(file).load("thinker", file)
