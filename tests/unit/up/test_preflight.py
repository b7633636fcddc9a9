"""Startup errors are reported before anything starts, with place, reason and remedy."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from omnibus.errors import BadRequest
from omnibus.executor.settings import ExecutorSettings
from omnibus.families import catalog
from omnibus.up import preflight
from omnibus.up.tiny_models import TRAINED

WHOLE = TRAINED / "qwen_image"


def split_thinker(degree: int) -> dict[str, Any]:
    """Return an omni model whose thinker runs in vLLM on ``degree`` GPUs."""
    declaration = catalog.model_declaration("qwen2_5_omni", str(TRAINED / "qwen2_5_omni"))
    thinker = {**declaration["options"]["Th"], "engine": "omnibus_engines:vllm", "gpus": degree}
    return {**declaration, "options": {**declaration["options"], "Th": thinker}}


#: The text of a declarations file, and its error. ``{tmp}`` is the directory of the file.
MISTAKES = {
    "a comma too many": ('{"models": {\n "a": {"family": "qwen2",,}}}', "line 2: "),
    "no models": ('{"qwen": {}}', 'declarations must have models: {"models": '),
    "a list": ("[]", "declarations must have models"),
    "a misspelt field": ('{"models": {\n "a": {"famly": "qwen2"}}}', "line 2: .* did you mean `family`?"),
    "an unknown family": ('{"models": {\n\n "a": {"family": "qwen9", "checkpoint": "x"}}}', "line 3: model a: there is no model family"),
    "a misspelt goal": (
        '{"models": {"a": {"family": "qwen2", "checkpoint": "x",\n "planned": {"goel": 1}}}}', "line 2: .* did you mean `goal`?",
    ),
    "no directory": ('{"models": {"a": {"family": "qwen2", "checkpoint": "/no/such"}}}', "model a: /no/such must be a directory"),
    "no directory beside it": ('{"models": {"a": {"family": "qwen2", "checkpoint": "./none"}}}', "./none must be a directory"),
    "not in the cache": (
        '{"models": {"a": {"family": "qwen2", "checkpoint": "Nobody/none"}}}', "download it with `omnibus models get Nobody/none`",
    ),
    "of another family": (
        json.dumps({"models": {"a": {"family": "qwen2_vl", "checkpoint": str(TRAINED / "qwen2_5_omni")}}}),
        "is a checkpoint of the family qwen2_5_omni, not of qwen2_vl",
    ),
    "nothing in it": ('{"models": {"a": {"family": "qwen_image", "checkpoint": "./empty"}}}', "has neither model_index.json nor"),
    "weights missing": ('{"models": {"a": {"family": "qwen_image", "checkpoint": "./lost"}}}', "lacks the weights vae/x.safetensors"),
    "an adapter that is none": (
        json.dumps({"models": {"a": {"family": "qwen_image", "checkpoint": str(WHOLE)},
                               "b": {"family": "qwen2_5_omni", "checkpoint": str(TRAINED / "qwen2_5_omni"),
                                     "adapters": {"poet": "./empty"}}}}),
        "model b, adapter poet: adapter .*empty: it has no adapter_config.json",
    ),
    "an adapter of PEFT for llama.cpp": (
        '{"models": {"a": {"family": "qwen2", "checkpoint": "./gguf/whole.gguf", "adapters": {"poet": "./empty"}, "options": {"L": '
        '{"components": ["thinker"], "service": "llm", "engine": "omnibus_engines:llama_cpp"}}, "paths": [{"options": ["L"]}]}}}',
        "model a, adapter poet: adapter .*empty is not a GGUF file",
    ),
    "heads that cannot be split": (
        json.dumps({"models": {"a": split_thinker(7)}}),
        "model a, option Th: . heads of keys and values cannot be split over 7 GPUs: set the option's `gpus` to a divisor or a multiple",
    ),
    "GGUF": ('{"models": {"a": {"family": "qwen2", "checkpoint": "./gguf/model-Q4_K_M.gguf"}}}', "model a: model-Q4_K_M.gguf is truncated or not a GGUF"),
    "GGUF that is not there": ('{"models": {"a": {"family": "qwen2", "checkpoint": "./none.gguf"}}}', "model a: ./none.gguf must be a directory or a GGUF file"),
    "GGUF in a directory": ('{"models": {"a": {"family": "qwen2", "checkpoint": "./gguf"}}}', "model a: .*gguf contains only GGUF files: name one of them"),
    "GGUF for vLLM": (
        '{"models": {"a": {"family": "qwen2", "checkpoint": "./gguf/model-Q4_K_M.gguf", "options": {"L": {"components": ["thinker"], '
        '"service": "llm", "engine": "omnibus_engines:vllm"}}, "paths": [{"options": ["L"]}]}}}',
        "model a: .*gguf is GGUF, which omnibus_engines:vllm does not serve: use omnibus_engines:transformers",
    ),
    "weights cut off": ('{"models": {"a": {"family": "qwen_image", "checkpoint": "./cut"}}}', "is truncated, it has .* bytes"),
}  # fmt: skip

#: The deployment of a simulated model.
SIMULATED = {"components": ["thinker"], "service": "llm", "engine": "omnibus_engines:sim"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Incomplete checkpoints."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "model-Q4_K_M.gguf").write_bytes(b"GGUF")
    for name in ("lost", "cut"):
        shutil.copytree(WHOLE, tmp_path / name)
    weights = tmp_path / "lost/vae/diffusion_pytorch_model.safetensors"
    weights.with_name(f"{weights.name}.index.json").write_text('{"weight_map": {"a": "x.safetensors"}}')
    weights.unlink()
    cut = tmp_path / "cut/vae/diffusion_pytorch_model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-100])
    return tmp_path


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_mistake_in_declarations_is_said_with_its_file_and_line(directory: Path, mistake: str):
    text, message = MISTAKES[mistake]
    path = directory / "models.json"
    path.write_text(text)

    with pytest.raises(BadRequest, match=f"^{path}: .*{message}"):
        await preflight.check_start(path, 1, {})


async def test_a_wrong_scripted_answer_is_said_with_its_file_and_place(tmp_path: Path):
    path = tmp_path / "models.json"
    declaration = {"family": "qwen3", "checkpoint": "./answers.json", "options": {"L": SIMULATED}}
    path.write_text(json.dumps({"models": {"a": {**declaration, "paths": [{"options": ["L"]}]}}}))
    (tmp_path / "answers.json").write_text('{"default": {"components": {"thinker": {"answers": [{"contains": "x"}]}}}}')

    with pytest.raises(BadRequest, match=r"model a: .*answers.json: default, component thinker: .*`\$.answers\[0\]`"):
        await preflight.check_start(path, 1, {})


async def test_what_is_good_passes(tmp_path: Path):
    path = tmp_path / "models.json"
    shutil.copytree(WHOLE, tmp_path / "mine")
    (tmp_path / "times.json").write_text("{}")
    models = {
        "whole": {"family": "qwen_image", "checkpoint": str(WHOLE)},
        "beside": {"family": "qwen_image", "checkpoint": "./mine"},
        "simulated": {"family": "qwen2", "checkpoint": "./times.json"},
    }
    path.write_text(json.dumps({"models": models}))

    await preflight.check_start(path, 1, {})


async def test_what_executors_download_or_other_engines_load_is_left_to_them(tmp_path: Path):
    path = tmp_path / "models.json"
    path.write_text('{"models": {"a": {"family": "qwen2", "checkpoint": "Nobody/none"}}}')

    await preflight.check_declarations(path, ExecutorSettings(download=True))
    await preflight.check_declarations(path, ExecutorSettings(engine="mine:engine"))


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"OMNIBUS_GATEWAY_KEYZ": "1"}, "did you mean OMNIBUS_GATEWAY_KEYS"),
        ({"OMNIBUS_PLANNER_WINDOW": "abc"}, "OMNIBUS_PLANNER_WINDOW='abc': a number is expected"),
        ({"OMNIBUS_SIDECAR_ARENA_MIB": "99999999999"}, "/dev/shm has .* reduce OMNIBUS_SIDECAR_ARENA_MIB"),
        ({"OMNIBUS_EXECUTOR_DTYPE": "float99"}, "OMNIBUS_EXECUTOR_DTYPE must be `float32` or `bfloat16`"),
        ({"OMNIBUS_EXECUTOR_DTYPE": "int8", "OMNIBUS_EXECUTOR_DEVICE": "cuda:0"}, "int8 is for CPUs: .* for cuda:0"),
        ({"OMNIBUS_EXECUTOR_DEVICE": "nowhere"}, "OMNIBUS_EXECUTOR_DEVICE='nowhere': .*`cpu` always works"),
    ],
)
async def test_a_wrong_setting_is_said_before_anything_starts(environ: dict[str, str], message: str):
    with pytest.raises(BadRequest, match=message):
        await preflight.check_start(None, 2, environ)
