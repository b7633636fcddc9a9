"""Vectors of sentence encoders follow the files of sentence-transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModel, AutoTokenizer, BertModel

from omnibus.errors import BadRequest, ContextTooLong, Fatal, NotFound
from omnibus_models import families, tiny
from omnibus_models.examine.report import examine_checkpoint
from omnibus_models.families.sentence_encoder import SentenceEmbedder
from tests.close import assert_close
from tests.unit.models.encoder_checkpoints import write_checkpoint, write_modules

TEXTS = ["the cat sat on the mat and the dog runs over the green hill", "hello world", "a"]
#: Each from rows [T, H] to [H].
POOLINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "cls": lambda rows: rows[0],
    "max": lambda rows: rows.max(0),
    "mean": lambda rows: rows.mean(0),
    "mean_sqrt_len_tokens": lambda rows: rows.sum(0) / np.sqrt(len(rows)),
    "weightedmean": lambda rows: np.average(rows, axis=0, weights=np.arange(1, len(rows) + 1)),
    "lasttoken": lambda rows: rows[-1],
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint("bert", tmp_path / "it")


def load_embedder(checkpoint: Path, **options: Any) -> SentenceEmbedder:
    embedder: SentenceEmbedder = families.family_of(checkpoint).load("embedder", checkpoint, **options)
    return embedder


def embed_texts(embedder: SentenceEmbedder, *texts: str, prompt_name: str | None = None) -> np.ndarray:
    return torch.stack(embedder.embed([embedder.prepare_text(text, prompt_name) for text in texts])).numpy()


def compute_hidden(checkpoint: Path, text: str) -> np.ndarray:
    """Return the library's last hidden states of one text, [T, H]."""
    inputs = AutoTokenizer.from_pretrained(checkpoint)(text, return_tensors="pt")
    with torch.inference_mode():
        hidden: np.ndarray = AutoModel.from_pretrained(checkpoint).eval()(**inputs).last_hidden_state[0].numpy()
    return hidden


@pytest.mark.numeric
@pytest.mark.parametrize("mode", POOLINGS)
@pytest.mark.parametrize("form", ["named", "flags"])
def test_a_text_is_pooled_as_its_checkpoint_says(checkpoint: Path, mode: str, form: str) -> None:
    flag = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "weightedmean": "weightedmean_tokens"}
    write_modules(
        checkpoint, {"pooling_mode": mode} if form == "named" else {f"pooling_mode_{flag.get(mode, mode)}": True}
    )

    vectors = embed_texts(load_embedder(checkpoint), *TEXTS)

    for vector, text in zip(vectors, TEXTS, strict=True):
        assert_close(vector, POOLINGS[mode](compute_hidden(checkpoint, text)).astype(np.float32))


@pytest.mark.numeric
def test_several_poolings_are_joined_and_dense_layers_follow(checkpoint: Path) -> None:
    write_modules(checkpoint, {"pooling_mode": ["cls", "mean"]}, "Dense", "Normalize")
    weight, bias = torch.randn(5, 64), torch.randn(5)
    dense = {"in_features": 64, "out_features": 5, "activation_function": "torch.nn.modules.activation.Tanh"}
    (checkpoint / "2_Dense").mkdir()
    (checkpoint / "2_Dense" / "config.json").write_text(json.dumps(dense))
    save_file({"linear.weight": weight, "linear.bias": bias}, checkpoint / "2_Dense" / "model.safetensors")

    [vector] = embed_texts(load_embedder(checkpoint), TEXTS[0])

    rows = compute_hidden(checkpoint, TEXTS[0])
    expected = np.tanh(weight.numpy() @ np.concatenate([rows[0], rows.mean(0)]) + bias.numpy())
    assert_close(vector, expected / np.linalg.norm(expected))


@pytest.mark.numeric
def test_without_the_files_a_vector_is_the_normalised_mean(checkpoint: Path) -> None:
    [vector] = embed_texts(load_embedder(checkpoint), TEXTS[0])

    mean = compute_hidden(checkpoint, TEXTS[0]).mean(0)
    assert_close(vector, mean / np.linalg.norm(mean))


@pytest.mark.numeric
@pytest.mark.parametrize("include_prompt", [True, False])
def test_a_prompt_is_put_before_a_text_and_may_be_left_out_of_the_pooling(
    checkpoint: Path, include_prompt: bool
) -> None:
    write_modules(checkpoint, {"pooling_mode": "weightedmean", "include_prompt": include_prompt})
    prompts = {"prompts": {"query": "what is ", "document": ""}, "default_prompt_name": "query"}
    (checkpoint / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    embedder = load_embedder(checkpoint)

    [usual], [named], [bare] = (
        embed_texts(embedder, "the dog", prompt_name=name) for name in (None, "query", "document")
    )

    rows, prompt_rows = compute_hidden(checkpoint, "what is the dog"), 0 if include_prompt else 3  # [CLS] what is
    weights = np.arange(1, len(rows) + 1)[prompt_rows:]
    assert_close(named, np.average(rows[prompt_rows:], axis=0, weights=weights).astype(np.float32))
    assert_close(usual, named)
    assert_close(bare, POOLINGS["weightedmean"](compute_hidden(checkpoint, "the dog")).astype(np.float32))
    with pytest.raises(BadRequest, match="unknown prompt 'passage'; this model has: query, document"):
        embedder.prepare_text("the dog", "passage")
    with pytest.raises(BadRequest, match="needs texts"):
        embedder.prepare_text([5, 6], "query")


def test_limits_and_lower_case_are_those_of_the_files(checkpoint: Path) -> None:
    write_modules(checkpoint, {"pooling_mode": "mean"}, max_seq_length=6, do_lower_case=True)
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    (checkpoint / "tokenizer.json").write_text(json.dumps({**tokenizer, "normalizer": None}))
    embedder = load_embedder(checkpoint)

    upper, lower = (embedder.prepare_text(text).features["input_ids"] for text in ("The CAT", "the cat"))

    assert torch.equal(upper, lower)
    assert embedder.prepare_text("the cat the cat").meta["n_tokens"] == 6
    with pytest.raises(ContextTooLong, match="the text has 7 tokens; this model takes 6"):
        embedder.prepare_text("the cat the cat the")


@pytest.mark.parametrize(("model_type", "positions"), [("bert", 40), ("roberta", 39), ("mpnet", 38)])
def test_a_text_fits_into_the_table_of_positions(model_type: str, positions: int, tmp_path: Path) -> None:
    embedder = load_embedder(write_checkpoint(model_type, tmp_path / "it", max_position_embeddings=40))

    [longest] = embed_texts(embedder, "a " * (positions - 2))

    assert np.isfinite(longest).all()
    with pytest.raises(ContextTooLong, match=f"this model takes {positions}"):
        embedder.prepare_text("a " * (positions - 1))


def test_special_tokens_in_a_text_are_plain_text(checkpoint: Path) -> None:
    ids = load_embedder(checkpoint).prepare_text("a [SEP] b").features["input_ids"].tolist()

    assert ids.count(3) == 1
    assert ids[-1] == 3


def test_a_pooler_without_weights_is_not_missed(checkpoint: Path) -> None:
    BertModel.from_pretrained(checkpoint, add_pooling_layer=False).save_pretrained(checkpoint)

    assert load_embedder(checkpoint).parameters
    assert examine_checkpoint(checkpoint).complete


@pytest.mark.parametrize(
    ("kinds", "pooling", "message"),
    [
        (["LSTM"], {"pooling_mode": "mean"}, "the module sentence_transformers.models.LSTM in a place where it is not"),
        ([], {"pooling_mode": "median"}, "unknown pooling median, use cls, max, mean"),
        (["Dense"], {"pooling_mode": "mean"}, "unknown activation_function os.system, use a module of torch.nn"),
    ],
)
def test_what_is_not_served_is_named(checkpoint: Path, kinds: list[str], pooling: dict[str, Any], message: str) -> None:
    write_modules(checkpoint, pooling, *kinds)
    (checkpoint / "2_Dense").mkdir()
    (checkpoint / "2_Dense" / "config.json").write_text('{"activation_function": "os.system"}')

    with pytest.raises(Fatal, match=message):
        load_embedder(checkpoint)


def test_code_of_a_checkpoint_is_not_run(checkpoint: Path) -> None:
    modules = [{"idx": 0, "name": "0", "path": "", "type": "custom_st.Transformer"}]
    (checkpoint / "modules.json").write_text(json.dumps(modules))

    with pytest.raises(Fatal, match="the module custom_st.Transformer"):
        load_embedder(checkpoint)


@pytest.mark.numeric
def test_a_language_model_with_the_files_embeds_as_they_say(tmp_path: Path) -> None:
    checkpoint = write_checkpoint("qwen3", tmp_path / "it")
    write_modules(checkpoint, {"pooling_mode_lasttoken": True}, "Normalize")

    vectors = embed_texts(load_embedder(checkpoint), *TEXTS)

    for vector, text in zip(vectors, TEXTS, strict=True):
        last = compute_hidden(checkpoint, text)[-1]
        assert_close(vector, last / np.linalg.norm(last))


@pytest.mark.parametrize(
    ("config", "family"),
    [
        ({"model_type": "roberta", "architectures": ["RobertaForMaskedLM"]}, "sentence_encoder"),
        ({"model_type": "mpnet"}, "sentence_encoder"),
        ({"model_type": "t5", "architectures": ["T5EncoderModel"]}, "sentence_encoder"),
        ({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, "qwen3"),
        ({"model_type": "bert", "architectures": ["BertLMHeadModel"]}, "causal_lm"),
        ({"model_type": "qwen3", "architectures": ["Qwen3ForSequenceClassification"]}, "cross_encoder"),
        ({"model_type": "bert", "architectures": ["BertForSequenceClassification"]}, "cross_encoder"),
    ],
)
def test_the_family_follows_from_the_class(config: dict[str, Any], family: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))

    assert families.family_of(tmp_path).name == family


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bart", "architectures": ["BartModel"], "is_encoder_decoder": True},
        {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
        {"model_type": "vit"},
    ],
)
def test_other_classes_are_no_sentence_encoders(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))

    with pytest.raises(NotFound, match="unknown model family"):
        families.family_of(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}, "has 2 labels; a reranker must have one"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}}, "unknown activation_fn"),
    ],
)
def test_other_classifiers_are_no_rerankers(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    checkpoint = tiny.build("cross_encoder", tmp_path / "it")
    if "id2label" in config:
        write_checkpoint("bert", checkpoint, classifies=True, num_labels=2)
    else:
        plain = json.loads((checkpoint / "config.json").read_text())
        (checkpoint / "config.json").write_text(json.dumps({**plain, **config}))

    with pytest.raises(Fatal, match=message):
        families.family_of(checkpoint).load("reranker", checkpoint)
