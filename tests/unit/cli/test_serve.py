"""``omnibus serve``: choices for this machine, and checkpoints that are refused before anything starts."""

import argparse
import json
import shlex
import socket
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from omnibus.checkpoints.report import ComponentReport, Report
from omnibus.checkpoints.safetensors import TensorHeader
from omnibus.cli import serve, serve_choices
from omnibus.cli.main import _build_parser, main
from omnibus.cli.serve import Served
from omnibus.cli.serve_choices import SYSTEM_BYTES, CachePlan, Machine
from omnibus.errors import BadRequest

GIB = 1 << 30
#: Ten billion weights in bfloat16, and the same in 4 bits.
WEIGHTS = [TensorHeader("BF16", (10**10,), 2 * 10**10), TensorHeader("F32", (10,), 40)]
QUANTISED = [TensorHeader("I32", (10**9,), 4 * 10**9), TensorHeader("F16", (10**9,), 2 * 10**9)]
#: As many in blocks of GGUF.
BLOCKS = [TensorHeader("Q4_K", (10**5, 10**5), 5 * 10**9), TensorHeader("F32", (10,), 40)]


def cpu(free_gib: float | None = 100, *, bfloat16: bool = False) -> Machine:
    return Machine("cpu", None if free_gib is None else int(free_gib * GIB), bfloat16)


def make_report(nbytes: int = GIB, context: int = 32_768, kv_bytes: int = 1 << 16) -> Report:
    """Return a report of a language model with a cache of 2 GiB per sequence, unless told otherwise."""
    part = ComponentReport(parameters=1, nbytes=nbytes, kv_bytes=kv_bytes, context=context)
    return Report("/models/one", "qwen2", "float32", {"thinker": part}, {"float32": nbytes}, 1)


def write_checkpoint(directory: Path, **config: Any) -> Path:
    """Write the files of a checkpoint with one small tensor."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen2", **config}))
    save_file({"model.norm.weight": np.ones(8, np.float32)}, directory / "model.safetensors")
    return directory


def parse(*arguments: str) -> argparse.Namespace:
    return _build_parser().parse_args(["serve", *arguments])


# dtype


@pytest.mark.parametrize("weights", [WEIGHTS, BLOCKS], ids=["bfloat16", "GGUF"])
@pytest.mark.parametrize(
    ("requested", "machine", "dtype"),
    [
        ("auto", cpu(), "float32"),
        ("auto", cpu(bfloat16=True), "bfloat16"),
        ("auto", cpu(30), "bfloat16"),  # in float32, the weights do not fit
        ("auto", cpu(None), "float32"),
        ("float16", cpu(), "float16"),
        ("auto", Machine("cuda", 30 * GIB), "bfloat16"),
        ("auto", Machine("cuda", 30 * GIB, bfloat16=False), "float16"),
        ("float32", Machine("cuda", 30 * GIB), "float32"),
    ],
)
def test_the_dtype_is_that_of_the_weights_unless_the_cpu_cannot_multiply_it(
    requested: str, machine: Machine, dtype: str, weights: list[TensorHeader]
):
    assert serve_choices.choose_dtype(requested, weights, machine) == dtype


def test_quantised_weights_keep_their_size_in_any_dtype():
    assert serve_choices.stored_dtype(QUANTISED) == "float16"
    assert serve_choices.loaded_bytes(QUANTISED, "float32") == 8 * 10**9
    assert serve_choices.loaded_bytes(WEIGHTS, "float32") == 4 * 10**10 + 40
    assert serve_choices.loaded_bytes(BLOCKS, "float32") == 4 * 10**10 + 40  # they are dequantised


@pytest.mark.parametrize(
    ("flags", "can_multiply"),
    [("fpu sse2 avx512f", False), ("fpu avx512_bf16 avx512f", True), ("asimd bf16", True), ("my_bf16x", False)],
)
def test_instructions_for_bfloat16_are_found_by_name(tmp_path: Path, flags: str, can_multiply: bool):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")

    assert serve_choices.multiplies_bfloat16(tmp_path / "cpuinfo") is can_multiply
    assert not serve_choices.multiplies_bfloat16(tmp_path / "none")


# memory


def test_weights_that_do_not_fit_are_refused_with_the_sizes_and_what_to_do():
    with pytest.raises(BadRequest, match=r"big does not fit.*float32 take 37.3 GiB.*8 GiB of memory.*--dtype bfloat16"):
        serve_choices.require_memory("big", 4 * 10**10, "float32", cpu(8))

    serve_choices.require_memory("big", 4 * 10**10, "float32", cpu(None))
    serve_choices.require_memory("big", 8 * GIB - SYSTEM_BYTES, "float32", cpu(8))


def test_integers_are_chosen_on_request_and_refused_on_a_gpu():
    assert serve_choices.choose_dtype("int8", WEIGHTS, cpu()) == "int8"

    with pytest.raises(BadRequest, match="--dtype int8 is for CPUs: choose another one for cuda"):
        serve_choices.choose_dtype("int8", WEIGHTS, Machine("cuda", 30 * GIB))


@pytest.mark.parametrize(
    ("free_gib", "context", "plan"),
    [
        (100, 0, CachePlan(32_768, 16)),
        (100, 1000, CachePlan(1000, 16)),
        (100, 10**6, CachePlan(32_768, 16)),  # the model has no more
        (2 + 10, 0, CachePlan(32_768, 4)),  # five sequences: one is for a tenant without any
        (2 + 2, 0, CachePlan(16_384, 1)),
        (None, 0, CachePlan(32_768, 16)),
    ],
)
def test_context_and_sequences_at_a_time_are_those_whose_caches_fit(
    free_gib: float | None, context: int, plan: CachePlan
):
    assert serve_choices.plan_cache(make_report(), ["L"], context, 16, cpu(free_gib)) == plan


def test_a_context_that_does_not_fit_is_refused_with_one_that_does():
    with pytest.raises(BadRequest, match=r"cache of 32768 tokens 4 GiB .* --max-model-len 16384 or less"):
        serve_choices.plan_cache(make_report(), ["L"], 32_768, 16, cpu(4))
    with pytest.raises(BadRequest, match="--max-model-len 1024 or less"):
        serve_choices.plan_cache(make_report(), ["L"], 0, 16, cpu(2 + 1 / 8))


def test_a_model_without_a_cache_is_served_with_the_usual_batch():
    parts = {"vae": ComponentReport(parameters=1, nbytes=1)}

    assert serve_choices.plan_cache(Report("/m", "qwen_image", "float32", parts), ["TDV"], 0, 16, cpu(2)) == (0, 16)


# declarations


@pytest.mark.parametrize(
    ("family", "options"),
    [("qwen2", ["L"]), ("qwen2_5_vl", ["EL"]), ("qwen2_5_omni", ["M"]), ("janus", ["EL", "TDV"])],
)
def test_a_model_runs_in_the_fewest_executors(family: str, options: list[str]):
    assert serve_choices.choose_shape(family) == options


def test_the_declaration_has_only_what_differs_from_the_usual():
    report = make_report()

    assert serve_choices.declare("one", report, "/m/one", ["L"], 0) == {
        "models": {"one": {"family": "qwen2", "checkpoint": "/m/one"}}
    }
    seeing = serve_choices.declare("two", Report("/m", "qwen2_5_vl", "float32", {}), "Qwen/two", ["EL"], 4096)
    assert seeing["models"]["two"] == {
        "family": "qwen2_5_vl",
        "checkpoint": "Qwen/two",
        "paths": [{"options": ["EL"], "share": 1}],
        "context": 4096,
    }


@pytest.mark.parametrize(
    ("family", "route"),
    [
        ("qwen2", "chat/completions"),
        ("qwen2_5_omni", "chat/completions"),
        ("qwen_image", "images/generations"),
        ("sentence_encoder", "embeddings"),
        ("dual_encoder", "embeddings"),
        ("cross_encoder", "rerank"),
    ],
)
def test_the_printed_command_survives_a_shell_whatever_the_name(family: str, route: str):
    served = Served("it's a model", family, "/m", "cpu", "float32", 0, 1)

    curl, url, *_, data = shlex.split(serve.example_command(served, "http://127.0.0.1:1/v1"))

    assert (curl, url) == ("curl", f"http://127.0.0.1:1/v1/{route}")
    assert json.loads(data)["model"] == "it's a model"


def test_the_command_for_a_text_to_speech_model_writes_a_file():
    served = Served("it's a model", "text_to_speech", "/m", "cpu", "float32", 0, 1)

    *_, data, flag, file = shlex.split(serve.example_command(served, "http://127.0.0.1:1/v1"))

    assert json.loads(data).keys() == {"model", "input", "voice"}
    assert (flag, file) == ("-o", "speech.mp3")


def test_the_command_for_a_recognizer_sends_a_file():
    served = Served("it's a model", "speech_to_text", "/m", "cpu", "float32", 0, 1)

    curl, url, *fields = shlex.split(serve.example_command(served, "http://127.0.0.1:1/v1"))

    assert (curl, url) == ("curl", "http://127.0.0.1:1/v1/audio/transcriptions")
    assert fields == ["-F", "model=it's a model", "-F", "file=@speech.wav"]


# the checkpoint


@pytest.mark.parametrize("path", ["a model", "./a model/", "../here/a model", "{0}/here/a model/"])
def test_a_path_may_be_relative_have_spaces_and_end_with_a_slash(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_checkpoint(tmp_path / "here" / "a model")
    monkeypatch.chdir(tmp_path / "here")

    candidate = serve.find_candidate(parse(path.format(tmp_path)))

    assert (candidate.name, candidate.checkpoint) == ("a model", str(tmp_path / "here" / "a model"))


def test_the_served_name_is_the_users(tmp_path: Path):
    options = parse(str(write_checkpoint(tmp_path / "one")), "--served-model-name", "assistant")

    assert serve.find_candidate(options).name == "assistant"


def test_what_cannot_be_served_is_refused_at_once_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "model-Q4.gguf").write_bytes(b"GGUF")
    pickled, cut, lost = (write_checkpoint(tmp_path / name) for name in ("pickled", "cut", "lost"))
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:-4])
    (lost / "model.safetensors").unlink()
    (lost / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    write_checkpoint(tmp_path / "strange", model_type="no_such_architecture")
    write_checkpoint(tmp_path / "absent", model_type="internvl_chat")
    expected = {
        "nowhere/at/all": "is not a directory of a checkpoint",
        "Qwen/Never-Downloaded": "`omnibus models get Qwen/Never-Downloaded`",
        "model-Q4.gguf": "is truncated or not a GGUF file: download it again",
        "pickled": "pickles, which are never read: convert them",
        "cut": "is truncated",
        "lost": "lacks the weights model-1.safetensors",
        "strange": "the architecture no_such_architecture is unknown",
        "absent": "code of its own, which is not run",
    }
    monkeypatch.chdir(tmp_path)
    began = time.process_time()

    for checkpoint, message in expected.items():
        assert main(["serve", checkpoint]) == 78
        assert message in capsys.readouterr().err
    assert time.process_time() - began < 5, "all of them, on a busy machine"


def test_weights_beyond_this_machines_memory_are_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    checkpoint = write_checkpoint(tmp_path / "huge")
    tensors = {"model.norm.weight": {"dtype": "F32", "shape": [1 << 38], "data_offsets": [0, 1 << 40]}}
    header = json.dumps(tensors).encode()
    with (checkpoint / "model.safetensors").open("wb") as file:  # it takes no space on the disk
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + (1 << 40))

    assert main(["serve", str(checkpoint), "--device", "cpu"]) == 78

    assert "huge does not fit: its weights in float32 take 1 TiB" in capsys.readouterr().err


def test_a_busy_port_is_refused_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    checkpoint = write_checkpoint(tmp_path / "one")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        assert main(["serve", str(checkpoint), "--port", str(port)]) == 78

    assert f"port {port} of 127.0.0.1 is in use" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [["--chat", "--json"], ["--chat", "--detach"], ["--max-model-len", "-1"], ["--host", "10.0.0.1"], ["--host", "me"]],
    ids=" ".join,
)
def test_flags_that_contradict_each_other_are_refused(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["serve", str(write_checkpoint(tmp_path / "one")), *flags]) == 78
    assert flags[-1] in capsys.readouterr().err
