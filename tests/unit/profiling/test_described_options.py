"""The profile describes the measured deployment, for the planner to repeat."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from omnibus.plan import DeploymentOption
from omnibus.profile import decode_profile, encode_profile
from omnibus.profiling.measure import describe_option
from omnibus.profiling.memory import GB
from tests.unit.planner.optimize.testbed import profile
from tests.unit.profiling.subjects import vl


def test_an_option_keeps_its_checkpoint_dtype_and_settings_of_vllm(tmp_path: Path) -> None:
    save_file({"lm_head.weight": torch.zeros(1000, dtype=torch.int8)}, tmp_path / "model.safetensors")
    declared = DeploymentOption(
        ("thinker",),
        "llm",
        gpus=2,
        engine="omnibus_engines:vllm",
        batch=8,
        checkpoint=str(tmp_path),
        dtype="bfloat16",
        vllm={"quantization": "fp8", "speculative_tokens": 4},
    )

    found = describe_option(vl(), declared, "H100")

    assert (found.gpus, found.tp, found.gpu, found.batch) == (2, 2, "H100", 8)
    assert (found.checkpoint, found.dtype, found.vllm) == (declared.checkpoint, declared.dtype, declared.vllm)
    assert found.weights_gb == 1000 / GB  # of the option's own checkpoint
    written = encode_profile(profile({"L": found}))
    assert decode_profile(written).options["L"] == found
    assert b'"vllm"' not in encode_profile(profile())
