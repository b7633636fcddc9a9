"""The changes: twenty-one regressions and twenty harmless ones, each of one option of Qwen2.5-VL as a candidate."""

from dataclasses import dataclass

from tests.bench.regressions import checkpoints as edits
from tests.bench.regressions.checkpoints import LAYER, VISION_BLOCK, Edit

_ENGINES = "tests.bench.regressions.engines:"
_TEMPLATE, _PROCESSOR, _TOKENIZER = "chat_template.jinja", "processor_config.json", "tokenizer.json"
_START = "<|im_start|>assistant{{ '\\n' }}"


@dataclass(frozen=True)
class RegressionCase:
    """A candidate for ``option`` or ``path``: changes of its checkpoint, and ``flags`` of its start.

    ``stage`` is the faulty component, empty for a harmless change. ``shows`` is the symptom of the fault: "outputs",
    "time", or "failures" of concurrent requests.
    """

    name: str
    option: str = ""
    edit: Edit | None = None
    flags: tuple[str, ...] = ()
    stage: str = ""
    shows: str = "outputs"

    @property
    def executor_option(self) -> str:
        """Option of the executors that are at fault."""
        return f"{self.option or self.flags[1]}@canary"


def _make_vision_case(name: str, edit: Edit | None = None, *flags: str, shows: str = "outputs") -> RegressionCase:
    return RegressionCase(f"vision: {name}", "E", edit, flags, "vision", shows)


def _make_thinker_case(name: str, edit: Edit | None = None, *flags: str, shows: str = "outputs") -> RegressionCase:
    return RegressionCase(f"thinker: {name}", "L", edit, flags, "thinker", shows)


def _engine_flags(name: str) -> tuple[str, str]:
    return "--engine", _ENGINES + name


def _old_pixels(processor: dict[str, dict[str, object]]) -> None:
    processor["image_processor"] |= {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


def _other_base(config: dict[str, dict[str, dict[str, object]]]) -> None:
    config["text_config"]["rope_parameters"]["rope_theta"] = 1e6


def _sort_keys(_: object) -> None:
    """Written again, with its keys in order."""


REGRESSIONS = (
    _make_vision_case("one row is missing", edits.zero_row("visual.merger.mlp.2.weight", 17)),
    _make_vision_case("two blocks are swapped", edits.swap_layers(VISION_BLOCK)),
    _make_vision_case("colours in the wrong order", edits.edit_weights(edits.flip_channels)),
    _make_vision_case("pixels are normalised by old constants", edits.edit_json(_PROCESSOR, _old_pixels)),
    _make_vision_case("4 bits", edits.round_weights("visual.", 7)),
    _make_vision_case("bfloat16, where 0.001 is tolerated", None, "--dtype", "bfloat16", "--tolerance", "0.001"),
    _make_vision_case("late", None, *_engine_flags("late"), shows="time"),
    _make_vision_case("fails now and then", None, *_engine_flags("failing")),
    _make_vision_case("gives the result of the request before", None, *_engine_flags("stale")),
    _make_vision_case("gives other results each time", None, *_engine_flags("noisy")),
    _make_vision_case("fails two requests at once", None, *_engine_flags("single"), "--share", "0.5", shows="failures"),
    _make_thinker_case("one row is missing", edits.zero_row("model.layers.1.mlp.down_proj.weight", 17)),
    _make_thinker_case("two layers are swapped", edits.swap_layers(LAYER)),
    _make_thinker_case("one tensor is missing", edits.zero_tensor("model.layers.0.self_attn.v_proj.weight")),
    _make_thinker_case("other base of rotary positions", edits.edit_json("config.json", _other_base)),
    _make_thinker_case("other system prompt", edits.edit_text(_TEMPLATE, "helpful assistant", "poet")),
    _make_thinker_case("prompt does not begin the answer", edits.edit_text(_TEMPLATE, _START, "")),
    _make_thinker_case("two tokens are swapped", edits.edit_json(_TOKENIZER, edits.swap_tokens)),
    _make_thinker_case("bfloat16", None, "--dtype", "bfloat16"),
    _make_thinker_case("late tokens", None, *_engine_flags("late_steps"), shows="time"),
    RegressionCase("plan: path through a late executor", flags=("--path", "EL"), stage="vision", shows="time"),
)


def _make_harmless(name: str, edit: Edit | None = None, *flags: str) -> tuple[RegressionCase, RegressionCase]:
    return RegressionCase(f"vision: {name}", "E", edit, flags), RegressionCase(f"thinker: {name}", "L", edit, flags)


HARMLESS = (
    *_make_harmless("a copy", edits.keep_copy),
    *_make_harmless("weights in two files", edits.shard_weights),
    *_make_harmless("one more file", edits.add_file),
    *_make_harmless("configuration written again", edits.edit_json("config.json", _sort_keys)),
    *_make_harmless("weights off by a millionth", edits.add_noise("", 1e-6)),
    *_make_harmless("float32 by name", None, "--dtype", "float32"),
    *_make_harmless("batches of 4", None, "--batch", "4"),
    *_make_harmless("batches of 32", None, "--batch", "32"),
    *_make_harmless("an engine that does the same", None, *_engine_flags("plain")),
    *_make_harmless("two replicas of a copy", edits.keep_copy, "--replicas", "2"),
)
