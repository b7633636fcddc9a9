"""A report on a checkpoint predicts its loading without reading a weight."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import DynamicCache

from omnibus.errors import Fatal, NotFound
from omnibus_models import families, tiny
from omnibus_models.examine.report import examine_checkpoint


def copy_changed(checkpoint: Path, copy: Path, file: str = "config.json", **fields: Any) -> Path:
    """Return a copy of a checkpoint with changed fields in a file; ``None`` removes a field."""
    shutil.copytree(checkpoint, copy, dirs_exist_ok=True)
    all_fields = {**json.loads((copy / file).read_text()), **fields}
    (copy / file).write_text(json.dumps({name: value for name, value in all_fields.items() if value is not None}))
    return copy


def with_weights(checkpoint: Path, copy: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    shutil.copytree(checkpoint, copy)
    weights = load_file(copy / "model.safetensors")
    change(weights)
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    return copy


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_components_are_as_large_as_they_load(family: str, tmp_path: Path) -> None:
    checkpoint = tiny.build(family, tmp_path / "it")

    report = examine_checkpoint(checkpoint, "bfloat16")

    assert report.complete, report
    loaded_parts = {
        name: families.load_family(family).load(name, checkpoint, dtype="bfloat16") for name in report.parts
    }
    assert {name: part.parameters for name, part in report.parts.items()} == {
        name: part.parameters for name, part in loaded_parts.items()
    }
    for name, part in loaded_parts.items():
        tensors = [*part.module.parameters(), *part.module.buffers()]
        assert report.parts[name].nbytes == sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3", "gemma3"])
def test_a_token_takes_what_it_takes_in_a_cache(family: str, tmp_path: Path) -> None:
    checkpoint = tiny.build(family, tmp_path / "it")
    thinker, cache = families.load_family(family).load("thinker", checkpoint), DynamicCache()
    inputs = thinker.embed(torch.zeros(1, 10, dtype=torch.int64))
    thinker.forward(inputs, torch.arange(10).expand(thinker.axes, 1, 10), cache, None)
    cache_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)

    part_reports = examine_checkpoint(checkpoint, "float32").parts

    assert part_reports["thinker"].kv_bytes == cache_bytes / 10
    assert part_reports["thinker"].context == thinker.context
    assert all(part.kv_bytes == 0 for name, part in part_reports.items() if name == "vision")


def test_layers_that_look_aside_keep_nothing_of_a_token(tmp_path: Path) -> None:
    checkpoint = tiny.build("mllama", tmp_path / "it")
    config = json.loads((checkpoint / "config.json").read_text())["text_config"]
    layers = config["num_hidden_layers"] - len(config["cross_attention_layers"])
    heads, width = config["num_key_value_heads"], config["hidden_size"] // config["num_attention_heads"]

    thinker_report = examine_checkpoint(checkpoint, "bfloat16").parts["thinker"]

    assert thinker_report.kv_bytes == layers * heads * width * 2 * 2


def test_nothing_is_read_but_headers(vl: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(vl, copy)
    with (copy / "model.safetensors").open("r+b") as file:
        begin = 8 + int.from_bytes(file.read(8), "little")
        file.seek(0, 2)
        end = file.tell()
        file.truncate(begin)
        file.truncate(end)  # a hole

    assert examine_checkpoint(copy).parts == examine_checkpoint(vl).parts


VISUAL = "model.visual.blocks.0.attn.qkv.weight"


def on_disk(checkpoint: Path, name: str) -> str:
    """Return a weight's name in a checkpoint. The library renames some when it saves."""
    names = load_file(checkpoint / "model.safetensors")
    return next(each for each in names if each.endswith(name.removeprefix("model.")))


def test_weights_that_are_missing_are_named_with_their_component(vl: Path, tmp_path: Path) -> None:
    copy = with_weights(vl, tmp_path / "copy", lambda weights: weights.pop(on_disk(vl, VISUAL)))

    report = examine_checkpoint(copy)

    assert report.parts["vision"].missing == [VISUAL]
    assert report.parts["vision"].faults == [f"lacks 1 weight: {VISUAL}"]
    assert report.parts["thinker"].faults == []
    assert not report.complete
    with pytest.raises(Fatal, match=VISUAL):
        families.family_of(copy).load("vision", copy)


def test_weights_of_another_shape_are_named_with_their_component(vl: Path, tmp_path: Path) -> None:
    def narrow_weights(weights: dict[str, torch.Tensor]) -> None:
        weights[on_disk(vl, VISUAL)] = torch.zeros(2, 2)

    copy = with_weights(vl, tmp_path / "copy", narrow_weights)

    report = examine_checkpoint(copy)

    assert report.parts["vision"].odd == [VISUAL]
    assert report.parts["vision"].missing == []
    assert "has another shape than in its configuration: 1 weight" in report.parts["vision"].faults[0]
    with pytest.raises(Fatal):
        families.family_of(copy).load("vision", copy)


def test_tied_weights_are_one(tmp_path: Path) -> None:
    checkpoint = tiny.build("qwen2", tmp_path / "whole")
    head = load_file(checkpoint / "model.safetensors")["lm_head.weight"].numel()
    tied_copy = copy_changed(checkpoint, tmp_path / "tied", tie_word_embeddings=True)
    tied_copy = with_weights(tied_copy, tmp_path / "once", lambda weights: weights.pop("lm_head.weight"))

    report = examine_checkpoint(tied_copy)

    assert report.complete
    assert report.parts["thinker"].parameters == examine_checkpoint(checkpoint).parts["thinker"].parameters - head
    assert report.parts["thinker"].parameters == families.load_family("qwen2").load("thinker", tied_copy).parameters


def test_a_configuration_alone_tells_sizes(vl: Path, tmp_path: Path) -> None:
    copy = copy_changed(vl, tmp_path / "copy", dtype="bfloat16")
    (copy / "model.safetensors").unlink()

    report, whole = examine_checkpoint(copy), examine_checkpoint(vl, "bfloat16")

    assert (report.stored, report.files, report.complete) == ({}, 0, False)
    assert report.dtype == "bfloat16"
    sizes = [{name: (part.parameters, part.nbytes) for name, part in each.parts.items()} for each in (report, whole)]
    assert sizes[0] == sizes[1]


def test_nothing_but_a_configuration_tells_sizes_and_what_else_is_missing(vl: Path, tmp_path: Path) -> None:
    shutil.copy(vl / "config.json", tmp_path)

    report = examine_checkpoint(tmp_path)

    whole = examine_checkpoint(vl)
    sizes = [
        {name: (part.nbytes, part.kv_bytes, part.context) for name, part in each.parts.items()}
        for each in (report, whole)
    ]
    assert sizes[0] == sizes[1]
    assert all(part.problem for part in report.parts.values())


def test_a_configuration_of_a_model_that_fits_nowhere_costs_nothing(vl: Path, tmp_path: Path) -> None:
    config = json.loads((vl / "config.json").read_text())
    huge = {**config["text_config"], "hidden_size": 1 << 16, "intermediate_size": 1 << 18, "num_attention_heads": 512}
    copy = copy_changed(vl, tmp_path / "copy", text_config=huge)
    (copy / "model.safetensors").unlink()

    report = examine_checkpoint(copy, "bfloat16")

    assert report.parts["thinker"].nbytes > 100e9


def test_shards_that_are_not_there_or_broken_are_named(vl: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(vl, copy)
    weights = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    names = {name: f"model-{'12'['visual' in name]}.safetensors" for name in weights} | {"x": "model-3.safetensors"}
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (copy / "model-1.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    save_file({name: weights[name] for name in weights if "visual" in name}, copy / "model-2.safetensors")

    report = examine_checkpoint(copy)

    assert report.lost == ["model-3.safetensors"]
    assert report.broken == ["model-1.safetensors is not a safetensors file: download it again"]
    assert report.parts["vision"].faults == []
    assert report.parts["thinker"].missing
    assert not report.complete


def test_pickles_are_not_read(vl: Path, tmp_path: Path) -> None:
    shutil.copytree(vl, tmp_path / "copy", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(load_file(vl / "model.safetensors"), tmp_path / "copy" / "pytorch_model.bin")

    report = examine_checkpoint(tmp_path / "copy")

    assert report.broken == ["pytorch_model.bin is a pickle, which is never read: convert it"]
    assert not report.complete
    with pytest.raises(Fatal, match=r"model\.safetensors"):
        families.family_of(vl).load("vision", tmp_path / "copy")


@pytest.mark.parametrize(("pattern", "part"), [("*processor*", "vision"), ("tokenizer*", "thinker")])
def test_files_that_a_component_needs_beside_weights_are_missed(
    pattern: str, part: str, vl: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(vl, copy, ignore=shutil.ignore_patterns(pattern))

    report = examine_checkpoint(copy)

    assert report.parts[part].problem
    assert not report.parts[part].missing
    assert not report.complete


def test_what_a_family_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    checkpoint = tiny.build("qwen2", tmp_path / "whole")
    sliding = copy_changed(
        checkpoint,
        tmp_path / "sliding",
        use_sliding_window=True,
        sliding_window=8,
        max_window_layers=0,
        layer_types=None,
    )

    report = examine_checkpoint(sliding)

    assert "sliding_attention cannot be served" in report.parts["thinker"].problem
    assert report.parts["thinker"].parameters == examine_checkpoint(checkpoint).parts["thinker"].parameters


def test_a_tower_that_does_not_fit_the_processor_is_refused(tmp_path: Path) -> None:
    checkpoint = tiny.build("llava", tmp_path / "it")
    config = json.loads((checkpoint / "config.json").read_text())
    pixtral = copy_changed(
        checkpoint, tmp_path / "other", vision_config={**config["vision_config"], "model_type": "pixtral"}
    )

    report = examine_checkpoint(pixtral)

    assert all("Image features and image tokens do not match" in part.problem for part in report.parts.values())


def test_families_that_vllm_does_not_run_say_why(tmp_path: Path, vl: Path) -> None:
    gemma = examine_checkpoint(tiny.build("gemma3", tmp_path / "it"))

    assert gemma.complete
    assert "projected by its language model" in gemma.vllm
    assert examine_checkpoint(vl).vllm == ""


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "NVLM_D"}, "NVLM-D has no class in transformers"),
        ({"model_type": "vit"}, "unknown model family 'vit'; known: causal_lm, cross_encoder"),
        ({}, "unknown model family ''"),
        (None, r"config\.json cannot be read; give the directory"),
    ],
)
def test_what_is_of_no_family_is_not_found(config: dict[str, Any] | None, message: str, tmp_path: Path) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(NotFound, match=message):
        examine_checkpoint(tmp_path)


def test_an_unknown_dtype_is_refused(vl: Path) -> None:
    with pytest.raises(Fatal, match="unknown dtype 'float5'"):
        examine_checkpoint(vl, "float5")
