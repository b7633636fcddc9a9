"""Checkpoints of interrupted runs, memory and weights, and the chart."""

import json
import os
import struct
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus import profile
from omnibus.errors import BadRequest, Conflict
from omnibus.families import catalog
from omnibus.families.specs import KNOWN
from omnibus.profile import ModelProfile, OptionProfile, Point, RoleCost, TypeProfile
from omnibus.profiling import memory, plot, run
from omnibus.profiling.experiments import choose_options
from omnibus.profiling.loaded_option import split_by_size
from omnibus.profiling.measurements import CostSample, MeasureSettings, OptionMeasurement, PartialProfile
from omnibus.profiling.workload import Workload
from omnibus_models import tiny
from tests.gguf_files import write_gguf
from tests.unit.profiling.subjects import make_vl_subject
from tests.unit.profiling.test_load_generator import make_request

KEY = {"model": "m", "workload": "w 1"}


def make_measurement(rate: float = 2.0, *parts: str, **more) -> OptionMeasurement:
    work = (RoleCost(parts or ("vision",), 1 / rate, "vision+thinker"),) if rate else ()
    curve = tuple(Point(2**n, rate * (n + 1), 0.1) for n in range(4)) if rate else ()
    return OptionMeasurement(OptionProfile(parts or ("vision",), rate=rate, work=work, curve=curve), **more)


def test_what_was_measured_is_there_for_the_next_run_and_what_did_not_start_is_tried_again(tmp_path: Path):
    first, again = (PartialProfile(tmp_path / "m.json", KEY) for _ in range(2))
    first.read_existing(resume=False)
    first.save_option("E", make_measurement())
    first.save_option("EL", make_measurement(0.0, notes=("EL is not measured",)))
    again.read_existing(resume=True)

    assert first.path == tmp_path / "m.partial.json"
    assert again.found == {"E": make_measurement()}
    again.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_interrupted_is_not_overwritten(tmp_path: Path):
    PartialProfile(tmp_path / "m.json", KEY).save_option("E", make_measurement())

    with pytest.raises(Conflict, match="continue with --resume, or remove it"):
        PartialProfile(tmp_path / "m.json", KEY).read_existing(resume=False)


def test_another_workload_is_refused(tmp_path: Path):
    PartialProfile(tmp_path / "m.json", KEY).save_option("E", make_measurement())

    with pytest.raises(Conflict, match="was started with workload w 1: use the same settings"):
        PartialProfile(tmp_path / "m.json", {**KEY, "workload": "w 2"}).read_existing(resume=True)


def test_a_broken_partial_file_is_said_so(tmp_path: Path):
    (tmp_path / "m.partial.json").write_text("{")

    with pytest.raises(BadRequest, match="remove it to start over"):
        PartialProfile(tmp_path / "m.json", KEY).read_existing(resume=True)


def test_a_place_that_cannot_be_written_is_said_so(tmp_path: Path):
    with pytest.raises(BadRequest, match="cannot be written"):
        PartialProfile(tmp_path / "no" / "m.json", KEY).save_option("E", make_measurement())


def make_spec() -> run.ProfilingSpec:
    subject = make_vl_subject()
    requests = (make_request(0.6, "vision+thinker"), make_request(0.4, "thinker"))
    return run.ProfilingSpec(subject, Workload("w 1", requests), choose_options(subject), MeasureSettings())


def test_the_key_says_all_that_a_measurement_depends_on():
    key = make_spec().key

    assert key["options"] == "E,L,EL"
    assert {"model", "checkpoint", "workload", "environment", "seconds", "requests", "most", "others", "gpu"} <= {*key}


def test_a_profile_is_put_together_and_can_be_read_again():
    thought = {"vision+thinker": {"prompt_tokens": 90.0}, "thinker": {"prompt_tokens": 20.0}}
    samples = tuple(CostSample("thinker", {"completion_tokens": n}, {"thinker": 0.01 + 0.002 * n}) for n in (8.0, 24.0))
    whole = run.build_profile(
        make_spec(),
        {
            "E": make_measurement(
                9.0, "vision", edges=(profile.EdgeProfile("vision", "thinker", 4096.0, "vision+thinker"),)
            ),
            "L": make_measurement(4.0, "thinker", quantities=thought, samples=samples),
            "EL": make_measurement(0.0, "vision", "thinker", notes=("EL is not measured: it does not start",)),
        },
    )

    assert profile.decode_profile(profile.encode_profile(whole)) == whole
    assert whole.types["thinker"].share == 0.4
    assert whole.types["vision+thinker"].quantities == {"prompt_tokens": 90.0}
    assert whole.lines["thinker"].per["completion_tokens"] == pytest.approx(0.002)
    assert "vision" not in whole.lines
    assert not whole.options["EL"].is_measured
    assert whole.edges[0].bytes == 4096.0
    assert whole.order == (("vision", "thinker"),)


def test_small_and_large_requests_are_told_apart():
    def make_requests(*sizes: float):
        return [msgspec.structs.replace(make_request(1.0), size=size) for size in sizes]

    assert [(share, len(each)) for share, each in split_by_size(make_requests(10, 11, 10.5))] == [(1.0, 3)]
    assert [(share, [one.size for one in each]) for share, each in split_by_size(make_requests(40, 10, 30, 20))] == [
        (0.5, [10, 20]), (0.5, [30, 40]),
    ]  # fmt: skip
    assert [len(each) for _, each in split_by_size(make_requests(10, 90))] == [1, 1]
    assert [len(each) for _, each in split_by_size(make_requests(10))] == [1]


def test_memory_of_a_process_is_read():
    assert 0.001 < memory.memory_gb(os.getpid()) < 100
    assert memory.memory_gb(2**30) == 0.0


def write_safetensors(path: Path, tensors: dict[str, int]) -> None:
    at = 0
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, nbytes in tensors.items():
        header[name] = {"dtype": "F32", "shape": [nbytes // 4], "data_offsets": [at, at + nbytes]}
        at += nbytes
    body = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(body)) + body + bytes(at))


def test_weights_are_those_of_the_components(tmp_path: Path):
    write_safetensors(tmp_path / "a.safetensors", {"visual.x": 400, "model.x": 800, "lm_head.weight": 40})
    write_safetensors(tmp_path / "b.safetensors", {"model.visual.y": 4})

    assert memory.weights_gb("qwen2_5_vl", str(tmp_path), ["vision"]) == pytest.approx(404e-9)
    assert memory.weights_gb("qwen2_5_vl", str(tmp_path), ["vision", "thinker"]) == pytest.approx(1244e-9)
    assert memory.weights_gb("qwen2_5_omni", str(tmp_path), ["vision"]) == 0.0
    assert memory.weights_gb("unheard", str(tmp_path), ["vision"]) == 0.0
    assert memory.weights_gb("qwen2_5_vl", str(tmp_path / "none"), ["vision"]) == 0.0


def test_weights_of_a_gguf_file_are_those_of_its_tensors(tmp_path: Path):
    checkpoint = tiny.build("qwen3", tmp_path / "qwen3")
    file = write_gguf(checkpoint, tmp_path / "qwen3.gguf")

    stored = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    assert memory.weights_gb("causal_lm", str(file), ["thinker"]) == pytest.approx(stored / 1e9, rel=0.05)


@pytest.mark.parametrize("body", [b"", b"\x01", struct.pack("<Q", 1 << 60), struct.pack("<Q", 4) + b"nope"])
def test_what_is_no_safetensors_file_has_no_weights(tmp_path: Path, body: bytes):
    (tmp_path / "a.safetensors").write_bytes(body)

    assert memory.weights_gb("qwen2_5_vl", str(tmp_path), ["vision"]) == 0.0


@pytest.mark.parametrize("family", [name for name, entry in KNOWN.items() if entry.weights])
def test_all_weights_of_a_tiny_checkpoint_have_an_owner(tmp_path: Path, family: str):
    checkpoint = tiny.build(family, tmp_path / family)
    parts = catalog.FAMILIES[family]["components"]

    weights = [memory.weights_gb(family, str(checkpoint), [part]) for part in parts]
    files = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))

    starts = [start for part in KNOWN[family].weights.values() for start in part]
    assert all(weight > 0 for weight in weights)
    assert memory.weights_gb(family, str(checkpoint), parts) == pytest.approx(files / 1e9, rel=0.05)
    assert sum(weights) == pytest.approx(files / 1e9, rel=0.05) or len(starts) > len(set(starts))


def draw_profile(count: int, **more) -> tuple[str, list[ElementTree.Element]]:
    options = {f"option<{n}>": make_measurement(1.0 + n / 10, "vision").option for n in range(count)}
    whole = ModelProfile("m", "f", ("vision",), {"vision": TypeProfile(("vision",), 1.0)}, options, **more)
    text = plot.render_svg(whole)
    return text, list(ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text"))


@pytest.mark.parametrize("count", [0, 1, 3, 20])
def test_every_option_has_its_line_and_no_label_lies_on_another(count: int):
    text, words = draw_profile(count, workload="a & b")
    labels = [word for word in words if word.text.startswith("option<")]

    assert text.count('stroke-width="2"') == count
    assert len(labels) == count
    heights = sorted(float(label.get("y")) for label in labels)
    assert all(later - earlier > 10 for earlier, later in pairwise(heights))
    assert all(0 < height < plot.HEIGHT for height in heights)


def test_axes_have_round_numbers():
    _, words = draw_profile(2)
    labels = [word.text for word in words]

    assert {"0", "1", "2", "4", "8"} <= set(labels)
    assert "requests at a time" in labels
