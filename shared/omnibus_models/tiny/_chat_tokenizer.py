"""A byte-level BPE tokenizer and a chat template, trained offline."""

import re
from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 640

# Few words, often: byte-pair merges then reach whole words, and answers read as words.
_CORPUS = """the small white cat sleeps on the warm red mat and the big brown dog runs over the green hill.
describe the image. what is in this picture? what do you hear in this audio clip? summarise the video please.
system user assistant you are a helpful assistant. hello world, how are you today? i am fine, thank you very much.
a red square on a blue background with a green circle near the yellow sun and some dark clouds over the hill.
one two three four five six seven eight nine ten. yes no maybe. left right up down. old new long short.
people walk along the river under the trees while birds sing and children play with a ball in the park.
music plays softly, a voice speaks, water runs, wind blows, a door opens, and then there is silence again.
"""
WORDS = frozenset(re.findall(r"[a-z]{2,}", _CORPUS))
TEXTS = (*[_CORPUS] * 4, *["user\nassistant\nsystem\n"] * 4)

_NEWLINE = "{{ '\\n' }}"
_SYSTEM = (
    "{%- if messages[0]['role'] != 'system' -%}"
    "<|im_start|>systemNEWLINEYou are a helpful assistant.<|im_end|>NEWLINE"
    "{%- endif -%}"
)
_TURNS = (
    "{%- for message in messages -%}"
    "<|im_start|>{{ message['role'] }}NEWLINE"
    "{%- if message['content'] is string -%}{{ message['content'] }}"
    "{%- else -%}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}IMAGE"
    "{%- elif part['type'] == 'video' -%}VIDEO"
    "{%- elif part['type'] == 'audio' -%}AUDIO"
    "{%- else -%}{{ part['text'] }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "<|im_end|>NEWLINE"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistantNEWLINE{%- endif -%}"
)


def build_chat_template(image: str = "", video: str = "", audio: str = "", *, system: bool = True) -> str:
    """Return the ChatML template with a placeholder string for each media item.

    A chat without a system message gets the usual one, unless ``system`` is false.
    """
    text = f"{_SYSTEM if system else ''}{_TURNS}".replace("NEWLINE", _NEWLINE)
    return text.replace("IMAGE", image).replace("VIDEO", video).replace("AUDIO", audio)


def train_tokenizer(
    special: Sequence[str],
    names: Mapping[str, str],
    chat_template: str,
    *,
    bos: str | None = None,
    eos: str = "<|im_end|>",
    pad: str = "<|endoftext|>",
    texts: Sequence[str] = TEXTS,
    vocabulary: int = VOCABULARY,
) -> PreTrainedTokenizerFast:
    """Train the tokenizer on ``texts``. ``names`` maps attributes such as ``image_token`` to special tokens.

    With ``bos`` each text begins with it, as with Llama's. There are at most ``vocabulary`` tokens.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    if bos is not None:
        bpe.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, bpe.token_to_id(bos))]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        extra_special_tokens=dict(names),
        model_max_length=32768,
        padding_side="left",
    )
    tokenizer.chat_template = chat_template
    return tokenizer
