"""The profile describes the measured deployment, for the planner to repeat."""

from pathlib import Path

import torch
from safetensors.torch import save_file

from omnibus.plan import DeploymentOption
from omnibus.profile import decode_profile, encode_profile
from omnibus.profiling.measure import describe_option
from omnibus.profiling.memory import GB
from tests.unit.planner.optimize.testbed import make_profile
from tests.unit.profiling.subjects import make_vl_subject


def test_an_option_keeps_its_checkpoint_dtype_and_settings_of_vllm(tmp_path: Path) -> None:
    save_file({"lm_head.weight": torch.zeros(1000, dtype=torch.int8)}, tmp_path / "model.safetensors")
    option = DeploymentOption(
        ("thinker",),
        "llm",
        gpus=2,
        engine="omnibus_engines:vllm",
        batch=8,
        checkpoint=str(tmp_path),
        dtype="bfloat16",
        vllm={"quantization": "fp8", "speculative_tokens": 4},
    )

    option_profile = describe_option(make_vl_subject(), option, "H100")

    assert (option_profile.gpus, option_profile.tp, option_profile.gpu, option_profile.batch) == (2, 2, "H100", 8)
    assert (option_profile.checkpoint, option_profile.dtype, option_profile.vllm) == (
        option.checkpoint,
        option.dtype,
        option.vllm,
    )
    assert option_profile.weights_gb == 1000 / GB  # of the option's own checkpoint
    encoded_profile = encode_profile(make_profile({"L": option_profile}))
    assert decode_profile(encoded_profile).options["L"] == option_profile
    assert b'"vllm"' not in encode_profile(make_profile())
