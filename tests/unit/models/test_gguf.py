"""Language models in GGUF files: they are those of the checkpoints from which the files were written."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from omnibus.checkpoints.gguf_header import MODEL_TYPES
from omnibus.errors import BadRequest, Fatal
from omnibus.plan import Plan
from omnibus_gateway.tasks.resolve import describe_model
from omnibus_llm.engine.model import ThinkerCore, ThinkSettings
from omnibus_llm.runners.thinker import ThinkRunner
from omnibus_models import families, tiny
from omnibus_models.examine.report import examine_checkpoint
from omnibus_models.miniature import build_copy, shrink_config
from omnibus_planner.declared import declarations_file
from tests.gguf_files import write_gguf, write_llama
from tests.oracles import language as oracle
from tests.unit.jobs import MemoryJob, finish_job

TYPES = {"llama": "causal_lm", "qwen2": "qwen2", "qwen3": "qwen3"}
CHAT = [{"role": "user", "content": "Hello, what <|im_end|> do you see?  two  spaces"}]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("models")
    return {
        "llama": write_llama(directory / "llama"),
        **{name: tiny.build(name, directory / name) for name in ("qwen2", "qwen3")},
    }


def load_thinker(path: Path) -> Any:
    return families.family_of(path).load("thinker", path)


@pytest.mark.parametrize("name", TYPES)
def test_weights_and_prompts_are_those_of_the_checkpoint(
    checkpoints: dict[str, Path], tmp_path: Path, name: str
) -> None:
    path = write_gguf(checkpoints[name], tmp_path / "a.gguf")

    assert families.family_of(path).name == TYPES[name]
    thinker, original = load_thinker(path), load_thinker(checkpoints[name])
    weights = thinker.module.state_dict()
    assert weights.keys() == original.module.state_dict().keys()
    assert all(torch.equal(weights[each], values) for each, values in original.module.state_dict().items())
    assert thinker.prompt(CHAT) == original.prompt(CHAT)
    assert thinker.encode_text("the small cat", marked=True) == original.encode_text("the small cat", marked=True)
    assert (thinker.eos, thinker.context) == (original.eos, original.context)


@pytest.mark.nightly
@pytest.mark.parametrize("model_type", MODEL_TYPES.values())
def test_logits_of_each_architecture_are_those_of_the_library(
    checkpoints: dict[str, Path], tmp_path: Path, model_type: str
) -> None:
    shutil.copytree(checkpoints["llama"], tmp_path / "it")  # for its tokenizer
    config = AutoConfig.for_model(model_type)
    small = shrink_config(config)
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    for field, value in {"vocab_size": 550, **tokens}.items():
        setattr(small, field, value)
    if model_type == "qwen3_moe":
        small.norm_topk_prob = True  # as in all of them, so files do not say it
    if "sliding_attention" in (getattr(small, "layer_types", None) or ()):
        small.layer_types = type(config)(num_hidden_layers=small.num_hidden_layers).layer_types
    module = build_copy(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], small)
    module.save_pretrained(tmp_path / "it")
    prompt = torch.randint(5, 500, (1, 24), generator=torch.Generator().manual_seed(0))

    thinker = load_thinker(write_gguf(tmp_path / "it", tmp_path / "a.gguf"))

    with torch.inference_mode():
        torch.testing.assert_close(thinker.module(prompt).logits, module(prompt).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", TYPES)
def test_the_tokenizer_is_the_librarys_own(checkpoints: dict[str, Path], tmp_path: Path, name: str) -> None:
    path = write_gguf(checkpoints[name], tmp_path / "a.gguf")
    library = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    (tmp_path / "tokenizer.json").write_text("{}")  # of another model

    tokenizer = load_thinker(path).tokenizer

    assert tokenizer.backend_tokenizer.to_str() == library.backend_tokenizer.to_str()
    assert tokenizer.special_tokens_map == library.special_tokens_map
    assert tokenizer.chat_template == library.chat_template


async def test_answers_of_a_file_are_those_of_the_library(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    path = write_gguf(checkpoints["llama"], tmp_path / "a.gguf")
    chats = [[{"role": "user", "content": text}] for text in ("hello world", "describe the image", "one two three")]
    runner = ThinkRunner(ThinkerCore("causal_lm", path, "cpu", "float32", ThinkSettings(slots=2, context=256)))
    await runner.load()
    jobs = [MemoryJob({"messages": chat, "params": {"max_tokens": 20}}) for chat in chats]

    await asyncio.gather(*(finish_job(runner, job) for job in jobs))
    await runner.close()

    assert [job.ids for job in jobs] == [oracle.generate_answer(checkpoints["llama"], chat, 20)[0] for chat in chats]


def test_blocks_have_the_values_of_the_formats_package(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    path, kind = write_gguf(checkpoints["qwen3"], tmp_path / "a.gguf", "Q8_0"), gguf.GGMLQuantizationType.Q8_0
    original = load_file(checkpoints["qwen3"] / "model.safetensors")

    weights = load_thinker(path).module.state_dict()

    for name, values in original.items():
        blocks = values if values.ndim == 1 else gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
        assert np.array_equal(weights[name].numpy(), blocks), name
    bfloat16 = families.load_family("qwen3").load("thinker", path, dtype="bfloat16").module.state_dict()
    assert all(torch.equal(bfloat16[name], each.bfloat16()) for name, each in weights.items())


@pytest.mark.parametrize("name", TYPES)
def test_a_report_reads_no_weights_and_is_what_loads(checkpoints: dict[str, Path], tmp_path: Path, name: str) -> None:
    path = write_gguf(checkpoints[name], tmp_path / "a.gguf", "Q8_0", template=False)
    (tmp_path / "mmproj-a.gguf").touch()

    report = examine_checkpoint(path)

    module = load_thinker(path).module
    assert report.complete
    assert (report.family, report.dtype, report.files) == (TYPES[name], "float32", 1)
    assert {*report.stored} == {"Q8_0", "float32"}
    [part] = report.parts.values()
    assert part.parameters == sum(each.numel() for each in module.parameters())
    assert part.nbytes == sum(each.nbytes for each in (*module.parameters(), *module.buffers()))
    assert part.context == 4096
    assert [note.partition(":")[0] for note in report.notes] == [
        "no processor",
        "mmproj-a.gguf is not used",
        "no generation config",
        "no chat template",
    ]
    assert report.vllm == "omnibus_engines:vllm does not serve GGUF"


def test_weights_that_a_file_lacks_are_named(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    path = write_gguf(checkpoints["llama"], tmp_path / "a.gguf", llama__block_count=3)

    report = examine_checkpoint(path)

    assert not report.complete
    assert "model.layers.2.mlp.up_proj.weight" in report.parts["thinker"].missing
    with pytest.raises(Fatal, match=r"lacks weights of LlamaForCausalLM: model\.layers\.2\."):
        load_thinker(path)


def test_an_unknown_architecture_is_refused(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    path = write_gguf(checkpoints["llama"], tmp_path / "a.gguf", architecture="deepseek4")

    with pytest.raises(BadRequest, match="has the architecture 'deepseek4', which is not served from GGUF"):
        examine_checkpoint(path)


def test_an_answer_ends_with_the_files_end_of_turn_too(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    path = write_gguf(checkpoints["llama"], tmp_path / "a.gguf", tokenizer__ggml__eot_token_id=0)

    assert load_thinker(path).eos == {0, 2}


def test_prompts_begin_with_the_begin_token_if_the_file_says_so(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    path = write_gguf(checkpoints["llama"], tmp_path / "a.gguf", tokenizer__ggml__add_bos_token=True)

    thinker, original = load_thinker(path), load_thinker(checkpoints["llama"])

    assert thinker.encode_text("hello", marked=True) == (1, *original.encode_text("hello", marked=True))
    assert thinker.prompt(CHAT) == original.prompt(CHAT)  # the template writes its own


def test_a_chat_without_a_template_is_refused(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    path = write_gguf(checkpoints["llama"], tmp_path / "a.gguf", template=False)

    with pytest.raises(BadRequest, match="this model has no chat template; send your text as the prompt of /v1/compl"):
        load_thinker(path).prompt(CHAT)


def test_clients_see_the_context_of_a_file(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    path = write_gguf(checkpoints["llama"], tmp_path / "a.gguf")

    declarations = tmp_path / "models.json"
    declarations.write_text(json.dumps({"models": {"m": {"family": "causal_lm", "checkpoint": str(path)}}}))

    models = declarations_file.build_static_plans(declarations_file.read_models(str(declarations)))

    assert describe_model("m", Plan(1, 0, 0.0, models)).context == 4096
