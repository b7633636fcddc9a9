"""Text-only language models answer like the library's own classes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AddedToken, AutoModelForCausalLM, AutoTokenizer

from omnibus.errors import BadRequest, ContextTooLong, Fatal, NotFound
from omnibus_models import families, tiny
from omnibus_models.contract import Encoded, PromptOptions
from omnibus_models.families._plain_prompts import tokenize_plain_prompt
from tests.oracles import language as oracle
from tests.unit.models.split import think_greedily

FAMILIES = ("causal_lm", "qwen2", "qwen3")
TOKENS = 24

CHATS: dict[str, list[dict[str, str]]] = {
    "one turn": [{"role": "user", "content": "hello world, how are you today?"}],
    "several turns": [
        {"role": "system", "content": "you are a small cat."},
        {"role": "user", "content": "what is on the hill?"},
        {"role": "assistant", "content": "a red square."},
        {"role": "user", "content": "and under the trees?"},
    ],
    "lines": [{"role": "user", "content": "one two three\nfour five"}],
}


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(request.param, tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="module")
def thinker(checkpoint: Path) -> Any:
    return families.family_of(checkpoint).load("thinker", checkpoint)


def copy_changed(checkpoint: Path, copy: Path, **settings: Any) -> Path:
    """Return a copy of a checkpoint with other settings in its configuration."""
    shutil.copytree(checkpoint, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, **settings}))
    return copy


def copy_without(checkpoint: Path, copy: Path, weight_name: str) -> Path:
    """Return a copy of a checkpoint without weights named like ``weight_name``."""
    shutil.copytree(checkpoint, copy)
    weights = load_file(copy / "model.safetensors")
    kept_weights = {name: value for name, value in weights.items() if weight_name not in name}
    assert len(kept_weights) < len(weights)
    save_file(kept_weights, copy / "model.safetensors", {"format": "pt"})
    return copy


@pytest.mark.numeric
@pytest.mark.parametrize("chat", CHATS)
def test_it_answers_like_the_librarys_own_class(checkpoint: Path, thinker: Any, chat: str) -> None:
    messages = CHATS[chat]

    thought = think_greedily(thinker, [], messages, {}, TOKENS)

    ids, words = oracle.generate_answer(checkpoint, messages, TOKENS)
    assert thought.ids == ids
    assert thinker.decode_ids(thought.ids) == words


@pytest.mark.numeric
def test_tokens_that_the_checkpoint_suppresses_are_never_chosen(checkpoint: Path, tmp_path: Path) -> None:
    messages = CHATS["one turn"]
    first, _ = oracle.generate_answer(checkpoint, messages, 4)
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    config = json.loads((copy / "generation_config.json").read_text())
    (copy / "generation_config.json").write_text(json.dumps({**config, "suppress_tokens": first}))

    thought = think_greedily(families.family_of(copy).load("thinker", copy), [], messages, {}, TOKENS)

    assert thought.ids == oracle.generate_answer(copy, messages, TOKENS)[0]
    assert not {*first} & {*thought.ids}


@pytest.mark.parametrize("chat", CHATS)
def test_prompts_are_those_of_the_chat_template(checkpoint: Path, thinker: Any, chat: str) -> None:
    prompt = thinker.prompt(CHATS[chat])

    assert list(prompt.ids) == oracle.make_prompt(checkpoint, CHATS[chat])
    layout = thinker.layout(prompt, [])
    assert (layout.positions.tolist(), layout.delta) == ([list(range(len(prompt.ids)))], 0)


@pytest.mark.numeric
def test_another_text_gives_another_answer(thinker: Any) -> None:
    texts = ["describe the hill", "describe the river", "describe the cat", "describe the dog"]

    answers = {
        tuple(think_greedily(thinker, [], [{"role": "user", "content": words}], {}, TOKENS).ids) for words in texts
    }

    assert len(answers) == 4


def test_a_token_that_templates_and_tokenizers_both_begin_with_is_there_once(checkpoint: Path, tmp_path: Path) -> None:
    begins = tmp_path / "begins"
    shutil.copytree(checkpoint, begins)
    (begins / "chat_template.jinja").write_text("<|endoftext|>{{ messages[0]['content'] }}")
    words = json.loads((begins / "tokenizer.json").read_text())
    token = {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}
    single = [{"SpecialToken": {"id": token["id"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    words["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token["id"]: token},
    }
    (begins / "tokenizer.json").write_text(json.dumps(words))

    prompt = families.family_of(begins).load("thinker", begins).prompt([{"role": "user", "content": "hello"}])

    assert prompt.ids.count(0) == 1


def test_parts_of_a_message_are_lines_of_it(thinker: Any) -> None:
    parts = [{"type": "text", "text": words} for words in ("one two three", "four five")]

    assert thinker.prompt([{"role": "user", "content": parts}]) == thinker.prompt(CHATS["lines"])


@pytest.mark.parametrize("kind", ["image", "video", "audio"])
def test_media_are_refused(thinker: Any, kind: str) -> None:
    with pytest.raises(BadRequest, match=f"'{kind}'; use text"):
        thinker.prompt([{"role": "user", "content": [{"type": "text", "text": "look"}, {"type": kind}]}])


def test_items_that_no_message_names_are_refused(thinker: Any) -> None:
    item = Encoded(torch.zeros(6, thinker.width), {"modality": "image", "n_tokens": 6, "grid_thw": [1, 4, 6]})

    with pytest.raises(BadRequest, match="these media: none"):
        thinker.assemble_prefill(thinker.prompt(CHATS["one turn"]), [item])


@pytest.mark.parametrize("token", ["<|im_end|>", "<|endoftext|>"])
def test_control_tokens_in_text_are_text(thinker: Any, token: str) -> None:
    plain = thinker.prompt([{"role": "user", "content": "ignore this  please"}]).ids
    ids = thinker.prompt([{"role": "user", "content": f"ignore this {token} please"}]).ids

    [special] = thinker._tokenizer.convert_tokens_to_ids([token])
    assert ids.count(special) == plain.count(special)
    assert f"ignore this {token} please" in thinker._tokenizer.decode(ids)
    assert thinker.decode_ids(thinker.encode_text(f"say {token} aloud {token}")) == f"say {token} aloud {token}"


def test_a_text_without_control_tokens_has_the_ids_of_the_tokeniser(thinker: Any) -> None:
    text = "the quick brown fox <|im_"

    assert list(thinker.encode_text(text, marked=True)) == thinker._tokenizer(text)["input_ids"]
    assert list(thinker.encode_text(text)) == thinker._tokenizer(text, add_special_tokens=False)["input_ids"]


MARKS = ("<tool_call>", "</tool_call>", "<think>", "[MARK]", "<|START|>")
TEXTS = ("<table>", "\n\n", "word", "<unused7>")


@pytest.fixture(scope="module")
def marking_thinker(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model with non-special added tokens, like Qwen's and Gemma's."""
    copy = tmp_path_factory.mktemp("added") / checkpoint.name
    shutil.copytree(checkpoint, copy)
    tokenizer = AutoTokenizer.from_pretrained(copy)
    tokenizer.add_tokens([AddedToken(each, special=False, normalized=False) for each in (*MARKS, *TEXTS)])
    tokenizer.save_pretrained(copy)
    return families.family_of(copy).load("thinker", copy)


@pytest.mark.parametrize("token", [*MARKS, "<unused7>"])
@pytest.mark.parametrize("role", ["user", "system"])
def test_added_tokens_that_mark_something_are_text_where_users_write_them(
    marking_thinker: Any, token: str, role: str
) -> None:
    text = f"ignore {token} this {token}{token} please <unused"
    chat = [{"role": role, "content": text}, {"role": "user", "content": [{"type": "text", "text": text}]}]

    ids = marking_thinker.prompt(chat[role == "user" :]).ids

    assert marking_thinker._tokenizer.convert_tokens_to_ids(token) not in ids
    assert text in marking_thinker._tokenizer.decode(ids)
    assert marking_thinker._tokenizer.convert_tokens_to_ids(token) not in marking_thinker.encode_text(text, marked=True)


@pytest.mark.parametrize("token", ["<table>", "\n\n", "word"])
def test_added_tokens_of_texts_stay_tokens(marking_thinker: Any, token: str) -> None:
    ids = marking_thinker.prompt([{"role": "user", "content": f"a {token} b"}]).ids

    assert marking_thinker._tokenizer.convert_tokens_to_ids(token) in ids


def test_a_model_reads_its_own_marks_and_no_special_tokens_in_what_it_said(marking_thinker: Any) -> None:
    text = "<think>so</think> yes <|im_end|>"
    ids = marking_thinker.prompt([*CHATS["one turn"], {"role": "assistant", "content": text}, *CHATS["one turn"]]).ids
    other_ids = marking_thinker.prompt(
        [*CHATS["one turn"], {"role": "assistant", "content": ""}, *CHATS["one turn"]]
    ).ids

    ends, thoughts = marking_thinker._tokenizer.convert_tokens_to_ids(["<|im_end|>", "<think>"])
    assert ids.count(ends) == other_ids.count(ends)
    assert ids.count(thoughts) == 1


def test_tools_calls_and_results_hold_no_marks_of_clients(marking_thinker: Any) -> None:
    token = marking_thinker._tokenizer.convert_tokens_to_ids("</tool_call>")
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": "</tool_call>"}}}]
    chat = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "name": "f", "content": "</tool_call>"},
    ]
    clean = json.loads(json.dumps(chat).replace("</tool_call>", "none"))
    tool = {"type": "function", "function": {"name": "f", "description": "</tool_call>"}}
    tidy = {"type": "function", "function": {"name": "f", "description": "none"}}

    prompt_ids = marking_thinker.prompt(chat, options=PromptOptions((tool,), {})).ids

    assert prompt_ids.count(token) == marking_thinker.prompt(clean, options=PromptOptions((tidy,), {})).ids.count(token)


def make_plain_prompt(content: Any) -> list[dict[str, Any]]:
    return [{"role": "prompt", "content": content}]


def test_a_plain_prompt_has_no_template_around_it(thinker: Any) -> None:
    ids = thinker.prompt(make_plain_prompt("hello there")).ids

    assert ids == tuple(thinker.encode_text("hello there", marked=True))
    assert thinker.prompt(make_plain_prompt(list(ids))).ids == ids


def test_a_plain_prompt_can_omit_the_marks_of_its_tokenizer(thinker: Any) -> None:
    [prompt] = make_plain_prompt("hello there")

    ids = thinker.prompt([{**prompt, "add_special_tokens": False}]).ids

    assert list(ids) == thinker._tokenizer("hello there", add_special_tokens=False)["input_ids"]


def test_a_suffix_is_refused_without_tokens_for_the_gap(thinker: Any) -> None:
    [prompt] = make_plain_prompt("def add(a, b):")

    with pytest.raises(BadRequest, match="cannot fill in") as caught:
        thinker.prompt([{**prompt, "suffix": "return c"}])

    assert caught.value.param == "suffix"


@pytest.mark.parametrize(
    "marks",
    [
        ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
        ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
        ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ],
)
def test_a_tokenizer_with_tokens_for_the_gap_frames_it(checkpoint: Path, marks: list[str]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.add_tokens(marks)
    prompt = {"role": "prompt", "content": "one two", "suffix": "four", "add_special_tokens": False}

    ids = tokenize_plain_prompt(prompt, tokenizer, (), len(tokenizer))

    before, after, answer = tokenizer.convert_tokens_to_ids(marks)
    texts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("one two", "four")]
    assert list(ids) == [before, *texts[0], after, *texts[1], answer]
    with pytest.raises(BadRequest, match="send the prompt as text"):
        tokenize_plain_prompt({**prompt, "content": texts[0]}, tokenizer, (), len(tokenizer))


def test_special_tokens_of_a_plain_prompt_are_tokens(thinker: Any) -> None:
    token_ids = thinker._tokenizer("<|im_start|>user\nhello<|im_end|>\n")["input_ids"]

    assert list(thinker.prompt(make_plain_prompt("<|im_start|>user\nhello<|im_end|>\n")).ids) == token_ids
    assert thinker._tokenizer.convert_tokens_to_ids("<|im_end|>") in token_ids


@pytest.mark.parametrize("content", ["", [], [1 << 30], [-1], [True], [1.5], {"a": 1}, None])
def test_a_plain_prompt_that_is_none_is_refused(thinker: Any, content: Any) -> None:
    with pytest.raises(BadRequest) as caught:
        thinker.prompt(make_plain_prompt(content))

    assert caught.value.param == "prompt"


def test_a_prompt_that_does_not_fit_the_context_is_refused(thinker: Any) -> None:
    prompt = thinker.prompt([{"role": "user", "content": "the cat " * thinker.context}])

    with pytest.raises(ContextTooLong, match=str(thinker.context - 1)):
        thinker.layout(prompt, [])


@pytest.mark.numeric
def test_it_is_the_whole_model(checkpoint: Path, thinker: Any) -> None:
    whole = AutoModelForCausalLM.from_pretrained(checkpoint)

    assert thinker.parameters == sum(parameter.numel() for parameter in whole.parameters())
    with pytest.raises(NotFound, match="has thinker"):
        families.family_of(checkpoint).load("vision", checkpoint)


@pytest.mark.numeric
def test_a_reader_holds_embeddings_and_a_norm_and_reads_as_the_whole_one(checkpoint: Path, thinker: Any) -> None:
    reader = families.family_of(checkpoint).reader(checkpoint)

    assert reader.parameters == reader.vocabulary * reader.width + reader.width
    prompt = reader.prompt(CHATS["several turns"])
    assert prompt == thinker.prompt(CHATS["several turns"])
    assert torch.equal(reader.assemble_prefill(prompt, []).inputs, thinker.assemble_prefill(prompt, []).inputs)
    assert (reader.eos, reader.context, reader.vocabulary) == (thinker.eos, thinker.context, thinker.vocabulary)
    assert not reader.speaks


@pytest.mark.parametrize("weight_name", ["layers.1.mlp.up_proj", "lm_head", "embed_tokens"])
def test_missing_weights_are_fatal(checkpoint: Path, tmp_path: Path, weight_name: str) -> None:
    broken_checkpoint = copy_without(checkpoint, tmp_path / "broken", weight_name)

    with pytest.raises(Fatal, match=weight_name):
        families.family_of(broken_checkpoint).load("thinker", broken_checkpoint)


@pytest.mark.numeric
def test_a_head_that_is_the_embedding_table_need_not_be_in_the_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    tied_checkpoint = copy_changed(checkpoint, tmp_path / "whole", tie_word_embeddings=True)
    tied_checkpoint = copy_without(tied_checkpoint, tmp_path / "tied", "lm_head")
    family = families.family_of(tied_checkpoint)

    thought = think_greedily(family.load("thinker", tied_checkpoint), [], CHATS["one turn"], {}, TOKENS)

    assert thought.ids == oracle.generate_answer(tied_checkpoint, CHATS["one turn"], TOKENS)[0]
    assert family.reader(tied_checkpoint).prompt(CHATS["one turn"]).ids


@pytest.mark.parametrize("checkpoint", ["qwen2", "qwen3"], indirect=True)
def test_sliding_layers_are_refused_by_name(checkpoint: Path, tmp_path: Path) -> None:
    sliding = copy_changed(checkpoint, tmp_path / "sliding", layer_types=["full_attention", "sliding_attention"])

    with pytest.raises(Fatal, match="sliding_attention"):
        families.family_of(sliding).load("thinker", sliding)


@pytest.mark.parametrize("checkpoint", ["causal_lm"], indirect=True)
def test_a_model_without_a_chat_template_continues_prompts(checkpoint: Path, tmp_path: Path) -> None:
    base_checkpoint = tmp_path / "base"
    shutil.copytree(checkpoint, base_checkpoint, ignore=shutil.ignore_patterns("chat_template*"))
    thinker = families.family_of(base_checkpoint).load("thinker", base_checkpoint)

    assert thinker.prompt([{"role": "prompt", "content": "one two"}]).ids
    with pytest.raises(BadRequest, match="no chat template; send your text as the prompt of /v1/completions"):
        thinker.prompt([{"role": "user", "content": "one two"}])
