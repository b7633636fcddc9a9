"""Small random copies of models: the same configuration with few layers, heads, experts and tokens.

A copy has one layer of each kind, and windows shorter than a short prompt. So it takes the same code paths as the
model, in milliseconds and without weights.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers import GenerationConfig

from omnibus_models.recorded_calls import WINDOWS

#: Codes of a vocoder, more than random models can choose.
CODES = 4096
_MAX_PARAMETERS = 400_000_000
LAYERS = 2
VOCABULARY = 256
WINDOW = 4
_MEDIA_WINDOW = 32  # less than a prompt with media, and enough for its end to attend to the last medium
_WIDTH = 64
_MAX_JOINED = 16  # rows that become one

_LAYER_COUNTS = frozenset(
    {"num_hidden_layers", "num_layers", "n_layer", "n_layers", "layers", "decoder_layers", "decoder_num_hidden_layers"}
)
#: More counts of layers, of encoders.
_DEPTHS = frozenset({"depth", "encoder_layers", "resampler_depth", "num_query_layers", "conf_num_hidden_layers"})
#: Those of encoders with decoders of their own.
_ENCODER_LAYERS = frozenset({"encoder_layers", "encoder_num_hidden_layers", "speech_encoder_layers"})
_HEADS = frozenset(
    {"num_attention_heads", "num_heads", "n_head", "n_heads", "decoder_attention_heads"}
    | {"encoder_attention_heads", "attention_heads", "decoder_num_attention_heads", "encoder_num_attention_heads"}
    | {"speech_encoder_attention_heads"}
)
#: Names of numbers of layers that encoders give rows of.
_TOKENS = ("token_id", "token_ids", "token_index")
#: Names of widths that one part has in common with another.
_LINKED = re.compile(r"^(?!.*(image|patch|window|vocab|kernel|head_dim)).*(size|dims?|width)$")
_CHOSEN_LAYERS = ("indexes", "indices", "feature_layer", "feature_layers")
_KEY_HEADS = frozenset(
    {"num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"}
    | {"encoder_num_key_value_heads", "decoder_num_key_value_heads"}
)
_WIDTHS = ("hidden_size", "d_model", "n_embd", "embed_dim", "emb_dim", "dim")
#: Widths that follow that of the rows.
_PROPORTIONAL = frozenset(
    {"attention_hidden_size", "embedding_dim", "rnn_width", "lru_width", "t2u_variance_predictor_embed_dim"}
    | {"word_embed_proj_dim"}
    | {"ext_pw_out_channel", "depthwise_separable_out_channel"}
)
#: Heads of states, their size, and the factor by which their width exceeds that of the rows.
_STATE_HEADS = (
    ("mamba_n_heads", "mamba_d_head", "mamba_expand"),
    ("n_mamba_heads", "mamba_headdim", "mamba_expand"),
    ("num_heads", "head_dim", "expand"),
)
#: One layer in so many has attention, or experts; and the first of them.
_PERIODS, _OFFSETS = frozenset({"attn_layer_period", "expert_layer_period"}), frozenset({"attn_layer_offset"})
_INNER_WIDTHS = frozenset(
    {
        *(
            "intermediate_size",
            "ffn_dim",
            "decoder_ffn_dim",
            "encoder_ffn_dim",
            "d_ff",
            "n_inner",
            "ffn_hidden_size",
            "mlp_dim",
        ),
        *("moe_intermediate_size", "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
        *("intermediate_size_mlp", "dense_intermediate_size", "prefix_dense_intermediate_size"),
        "expert_ffn_hidden_size",
    }
)
_EXPERTS = frozenset({"num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"})
_CHOSEN_EXPERTS = frozenset(
    {"zero_expert_num", "num_experts_per_tok", "moe_k", "top_k_experts", "num_experts_per_token", "moe_topk"}
)
_EXPERT_GROUPS = frozenset({"n_group", "topk_group"})
#: The first token that an encoder embeds itself.
_OFFSET = "vocab_offset"
#: Tokens by the words for codes of images (Chameleon), and how many of them a copy has.
_CODE_TOKENS, _CODE_COUNT = "vocabulary_map", 16
#: Channels of an encoder of codes, of which its width is a multiple.
_BASE_CHANNELS, _FEWEST_CHANNELS = "base_channels", 32
#: Widths of stages, of which the last is that of the next part.
_CHANNELS = "downsample_channels"
_VOCABULARIES = frozenset({"vocab_size", "unpadded_vocab_size", "vocab_size_per_layer_input"})
#: Widths of one part by another's: that of an encoder, or of the whole.
_PART_WIDTHS = {"backbone_hidden_size": "", "cross_hidden_size": "encoder_config"}
#: Vocoders of text-to-speech models.
_VOCODERS = frozenset({"codec_config", "vocoder_config", "audio_encoder"})
#: The most of each count in a copy.
_LIMITS = (
    (_HEADS, 4),
    (_KEY_HEADS, 2),
    (_ENCODER_LAYERS, LAYERS),
    (_INNER_WIDTHS, _WIDTH),
    (_EXPERTS, 4),
    (_CHOSEN_EXPERTS, 2),
    (_EXPERT_GROUPS, 1),
    (_PERIODS, 2),
    (_OFFSETS, 1),
    (WINDOWS, WINDOW),
    (_VOCABULARIES, VOCABULARY),
    (frozenset({"num_filters"}), 8),  # of the first of several stages
)


def shrink_config(config: Any) -> Any:
    """Return a small copy of the text configuration ``config``.

    The model has one layer of each kind.
    """
    return type(config).from_dict(shrink_fields(config.to_dict()))


def shrink_speech(config: Any) -> Any:
    """Return a small copy of the ``config`` of a text-to-speech model.

    Its tokens and its vocoder stay, so that the checkpoint's processor fits the copy.
    """
    fields = _keep_sounds(config.to_dict(), shrink_fields(config.to_dict()))
    for part in fields.values():
        for name, source in _PART_WIDTHS.items():
            if isinstance(part, dict) and name in part:
                part[name] = fields.get(source, fields)["hidden_size"]
        if isinstance(part, dict) and "codebook_size" in part:
            part["codebook_size"] = CODES
    if "unit_hifi_gan_vocab_size" in fields:
        fields["unit_hifi_gan_vocab_size"] = fields["t2u_vocab_size"]
    return type(config).from_dict(fields)


def _keep_sounds(fields: Mapping[str, Any], shrunk: dict[str, Any]) -> dict[str, Any]:
    """Return ``shrunk`` with tokens, vocabularies and vocoders of ``fields``."""
    own = {
        name: value
        for name, value in fields.items()
        if str(name).endswith((*_TOKENS, "vocab_size")) or name in _VOCODERS
    }
    parts = {
        name: _keep_sounds(fields[name], value)
        for name, value in shrunk.items()
        if isinstance(value, dict) and isinstance(fields.get(name), dict)
    }
    return {**shrunk, **parts, **own}


def shrink_parts(config: Any) -> Any:
    """Return a copy of the ``config`` of a model with encoders, as ``shrink_config`` does.

    The sizes of images and patches stay, so that the checkpoint's processor fits the copy. Its tokens become those of
    ``SmallTokens``.
    """
    fields = config.to_dict()
    text = config.get_text_config(decoder=True)
    names = [name for name in type(config).sub_configs if isinstance(fields.get(name), dict)]
    text_name = next((name for name in names if getattr(config, name) is text), "")
    widths: dict[int, int] = {}
    parts = {
        name: _shrink_part(fields[name], name == text_name, widths) for name in sorted(names, key=text_name.__ne__)
    }
    for name, part in parts.items():
        if _is_count(fields[name].get(_OFFSET)):  # one of the last tokens for each encoder
            last = (text.vocab_size - fields[name][_OFFSET]) // fields[name]["vocab_size"]
            parts[name] = {**part, _OFFSET: VOCABULARY - last, "vocab_size": 1}
    own = {name: value for name, value in fields.items() if name not in parts}
    if text_name:
        own = {name: _shrink_own(name, value) for name, value in _link_widths(own, "", widths).items()}
    else:
        own = _shrink_part(own, True, widths)
    if own.get(_CODE_TOKENS):
        own[_CODE_TOKENS] = {word: _code_token(word, token) for word, token in fields[_CODE_TOKENS].items()}
    return type(config).from_dict({**own, **parts})


def _shrink_part(fields: Mapping[str, Any], is_text: bool, widths: dict[int, int]) -> dict[str, Any]:
    """Shrink the ``fields`` of one part. ``widths`` maps widths of parts to those of the copy, and gets this part's."""
    if "architecture" in fields:  # a model of timm, whose name fixes its widths
        widths.setdefault(fields.get("hidden_size", 0), fields.get("hidden_size", 0))
        return {**fields, "model_args": _shrink_timm(fields.get("model_args"))}
    shrunk = shrink_fields(fields)
    if is_text:
        shrunk |= {
            name: min(value, _MEDIA_WINDOW) for name, value in fields.items() if name in WINDOWS and _is_count(value)
        }
        main = next((name for name in _WIDTHS if _is_count(fields.get(name))), "")
    else:
        shrunk |= {name: value for name, value in fields.items() if name in _VOCABULARIES | WINDOWS}
        shrunk |= {name: min(value, LAYERS) for name, value in fields.items() if name in _DEPTHS and _is_count(value)}
        shrunk |= {name: [1] * len(value) for name, value in fields.items() if name == "depths" and value}
        shrunk |= {name: _shrink_choice(name, value) for name, value in fields.items() if name.endswith(_CHOSEN_LAYERS)}
        own_names = [name for name in _WIDTHS if _is_count(fields.get(name))]
        main = next((name for name in own_names if fields[name] not in widths), own_names[0] if own_names else "")
        nested = [name for name, value in fields.items() if name.endswith("_config") and isinstance(value, dict)]
        shrunk |= {name: _shrink_part(fields[name], False, widths) for name in reversed(nested)}
        shrunk |= {
            name: [widths.get(each, each) for each in value]
            for name, value in fields.items()
            if name == _CHANNELS and value
        }
    if _BASE_CHANNELS in fields:
        factor = max(1, fields[_BASE_CHANNELS] // _FEWEST_CHANNELS)
        return {**fields, **{name: fields[name] // factor for name in (_BASE_CHANNELS, *_WIDTHS[:1]) if name in fields}}
    linked = _link_widths(fields, main, widths)
    result = {**shrunk, **{name: value for name, value in linked.items() if value != fields[name]}}
    if main and not is_text:
        result |= {
            name: fields[name] * result[main] // fields[main]
            for name in _INNER_WIDTHS & fields.keys()
            if _is_count(fields[name]) and (fields[name] % fields[main] == 0 or fields[main] % fields[name] == 0)
        }
    if main:
        widths.setdefault(fields[main], result[main])
    return result


def _shrink_timm(arguments: Any) -> Any:
    if not isinstance(arguments, dict) or "depth" not in arguments:
        return arguments
    return {**arguments, "depth": min(arguments["depth"], LAYERS)}


def _link_widths(fields: Mapping[str, Any], main: str, widths: Mapping[int, int]) -> dict[str, Any]:
    """Replace the widths of other parts among ``fields``; ``main`` is the name of this part's own."""
    return {
        name: _linked_width(name, value, widths) if _is_count(value) and name != main else value
        for name, value in fields.items()
    }


def _linked_width(name: str, value: int, widths: Mapping[int, int]) -> int:
    """Return the width in a copy of a field with ``value``: that of another part, or a small multiple of it."""
    if value in widths and _LINKED.search(name):
        return widths[value]
    joined = (
        old for old in widths if name.endswith("hidden_size") and value % old == 0 and value // old <= _MAX_JOINED
    )
    old = next(joined, 0)
    return widths[old] * (value // old) if old else value


def _shrink_own(name: str, value: Any) -> Any:
    """Shrink a field of a whole configuration that is not a part."""
    if name.endswith(_TOKENS):
        return _small_ids(value)
    return min(value, VOCABULARY) if name in _VOCABULARIES and _is_count(value) else _shrink_choice(name, value)


def _code_token(word: str, token: int) -> int:
    """Return the token of a copy for an image's code."""
    return token % VOCABULARY if word == "<image>" else VOCABULARY - _CODE_COUNT + token % _CODE_COUNT


class SmallTokens:
    """Maps tokens of a model with ``config`` to those of its copy: special ones as in its configuration.

    Raises ``ValueError`` if special tokens would become equal.
    """

    def __init__(self, config: Any) -> None:
        special = {*_list_tokens(config.to_dict())}
        self._special = {token: token % VOCABULARY for token in special}
        if len({*self._special.values()}) < len(special):
            raise ValueError("special tokens of a copy would be equal")

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the tokens of the copy for ``tokens``, of the same shape."""
        return tokens.clone().apply_(self._map_token) if tokens.device.type == "cpu" else tokens

    def _map_token(self, token: int) -> int:
        small = self._special.get(token, token % VOCABULARY)
        while token not in self._special and small in self._special.values():
            small = (small + 1) % VOCABULARY
        return small


def _list_tokens(fields: Mapping[str, Any]) -> Iterator[int]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _list_tokens(value)
        elif str(name).endswith(_TOKENS):
            yield from (each for each in (value if isinstance(value, list) else [value]) if _is_count(each))


def _shrink_choice(name: str, value: Any) -> Any:
    """Return numbers of layers that a copy has, if the field ``name`` has numbers of layers."""
    if not name.endswith(_CHOSEN_LAYERS):
        return value
    if isinstance(value, list):
        return [_shrink_choice(name, number) for number in value][:LAYERS] or value
    if not isinstance(value, int):
        return value
    return value % LAYERS if value >= 0 else max(value, -LAYERS)


def build_copy(cls: Any, config: Any) -> Any:
    """Return a random float32 model of ``cls`` that generates without an end.

    Raises ``ValueError`` if it would be large.
    """
    for kernels in ("sdpa", "eager") if cls._supports_sdpa else ("eager",):
        config._attn_implementation = kernels
        try:
            with torch.device("meta"):
                parameters = sum(weights.numel() for weights in cls(config).parameters())
            break
        except ValueError:  # a part of the model has no such attention
            if kernels == "eager":
                raise
    if parameters > _MAX_PARAMETERS:
        raise ValueError(f"a copy has {parameters} parameters")
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        module = cls(config).float().eval().requires_grad_(False)
    redraw_weights(module)
    module.generation_config = GenerationConfig(pad_token_id=0)
    return module


def build_speech_copy(cls: Any, config: Any) -> Any:
    """Return a model of ``build_copy`` with random codebooks, which are buffers."""
    module = build_copy(cls, config)
    generator = torch.Generator().manual_seed(1)
    for buffer in module.buffers():
        if buffer.dim() > 1 and not buffer.any():
            buffer.copy_(torch.randn(buffer.shape, generator=generator))
    return module


def shrink_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``fields`` of a configuration, shrunk."""
    old_count = next((fields[name] for name in _LAYER_COUNTS if _is_count(fields.get(name))), 0)
    chosen = _chosen_layers(fields, old_count)
    result = {name: _shrink_value(name, value, old_count, chosen) for name, value in fields.items()}
    for name in _KEY_HEADS & fields.keys():
        if fields[name] == next((fields[each] for each in _HEADS if each in fields), 0):
            result[name] = 4  # as many as query heads, as in the model
    if _is_count(result.get("num_kv_shared_layers")):
        result["num_kv_shared_layers"] = len(chosen) // 2
    stages = ["stem", *(f"stage{number}" for number in range(1, old_count + 1))]
    outputs = ("out_features", "out_indices", "stage_names") if fields.get("stage_names") == stages else ()
    for name in ("dtype", "torch_dtype", "quantization_config", *outputs):
        result.pop(name, None)
    _shrink_width(fields, result)
    return result


def _chosen_layers(fields: Mapping[str, Any], count: int) -> list[int]:
    """Return the numbers of the layers to keep: the first of each kind, at least ``LAYERS``."""
    kinds = fields.get("layer_types") or fields.get("layers_block_type")
    if not isinstance(kinds, list) or len(kinds) != count:
        return list(range(min(LAYERS, count)))
    firsts = {kind: kinds.index(kind) for kind in kinds}
    if _is_count(fields.get("num_kv_shared_layers")):  # the last of each kind reads the keys of the first
        return sorted({*firsts.values(), *(count - 1 - kinds[::-1].index(kind) for kind in firsts)})
    others = [index for index in range(count) if index not in firsts.values()]
    return sorted([*firsts.values(), *others[: max(0, LAYERS - len(firsts))]])


def _shrink_value(name: str, value: Any, old_count: int, chosen: list[int]) -> Any:
    if isinstance(value, dict) and value:
        return _shrink_dict(name, value, chosen)
    if isinstance(value, list) and old_count and len(value) == old_count:
        return [_shrink_value(name, value[index], 0, chosen) for index in chosen]
    if name.endswith(("layer_indices", "layer_ids")) and isinstance(value, list):
        return [1] if value else []  # the second of the layers
    if name.endswith(_TOKENS):
        return _small_ids(value)
    most = next((most for names, most in _LIMITS if name in names), None)
    if name in _LAYER_COUNTS:
        most = len(chosen)
    return value if most is None or not _is_count(value) else min(value, most)


def _shrink_dict(name: str, value: dict[Any, Any], chosen: list[int]) -> dict[Any, Any]:
    """Shrink a configuration of a part, or one of single layers.

    Keys of the latter are numbers of layers.
    """
    if all(isinstance(key, int) or key.isdigit() for key in value):
        return {type(next(iter(value)))(place): value[key] for place, key in _layer_keys(value, chosen)}
    return shrink_fields(value) if name.endswith("_config") else value


def _layer_keys(value: Mapping[Any, Any], chosen: list[int]) -> list[tuple[int, Any]]:
    """Return the new number and the key of each layer in ``chosen`` that ``value`` describes."""
    keys = {int(key): key for key in value}
    return [(place, keys[index]) for place, index in enumerate(chosen) if index in keys]


def _shrink_width(fields: Mapping[str, Any], result: dict[str, Any]) -> None:
    """Set the width to that of the heads; heads keep their own size."""
    name = next((each for each in _WIDTHS if _is_count(fields.get(each))), None)
    heads = next((each for each in _HEADS if _is_count(fields.get(each))), None)
    if name is None:
        return
    if heads is None:
        result[name] = min(fields[name], _WIDTH)
    else:
        size = fields.get("head_dim") if _is_count(fields.get("head_dim")) else fields[name] // fields[heads]
        result[name] = size * result[heads]
    for each in _PROPORTIONAL & fields.keys():
        if _is_count(fields[each]):
            result[each] = fields[each] * result[name] // fields[name]
    for count, size_name, factor in _STATE_HEADS:
        if all(_is_count(fields.get(each)) for each in (count, size_name, factor)):
            result[count] = result[name] * fields[factor] // fields[size_name]


def _small_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_small_ids(each) for each in value]
    return value % VOCABULARY if _is_count(value) else value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def redraw_weights(module: Any, seed: int = 0) -> None:
    """Draw all weights of ``module`` so that each layer changes its rows: the library's are often too small."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in module.named_parameters():
            drawn = torch.randn(weights.shape, generator=generator)
            if weights.dim() >= 2:
                weights.copy_(drawn * weights[0].numel() ** -0.5)
            elif name.endswith("bias"):
                weights.copy_(drawn * 0.05)
            elif not torch.isfinite(weights).all() or not weights.any():
                weights.copy_(drawn * 0.1)
