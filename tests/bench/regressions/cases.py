"""The changes: twenty-one regressions and twenty harmless ones, each of one option of Qwen2.5-VL as a candidate."""

from dataclasses import dataclass

from tests.bench.regressions import checkpoints as edits
from tests.bench.regressions.checkpoints import LAYER, VISION_BLOCK, Edit

_ENGINES = "tests.bench.regressions.engines:"
_TEMPLATE, _PROCESSOR, _TOKENIZER = "chat_template.jinja", "processor_config.json", "tokenizer.json"
_START = "<|im_start|>assistant{{ '\\n' }}"


@dataclass(frozen=True)
class Case:
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
    def executors(self) -> str:
        """Option of the executors that are at fault."""
        return f"{self.option or self.flags[1]}@canary"


def _vision(name: str, edit: Edit | None = None, *flags: str, shows: str = "outputs") -> Case:
    return Case(f"vision: {name}", "E", edit, flags, "vision", shows)


def _thinker(name: str, edit: Edit | None = None, *flags: str, shows: str = "outputs") -> Case:
    return Case(f"thinker: {name}", "L", edit, flags, "thinker", shows)


def _engine(name: str) -> tuple[str, str]:
    return "--engine", _ENGINES + name


def _old_pixels(processor: dict[str, dict[str, object]]) -> None:
    processor["image_processor"] |= {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


def _other_base(config: dict[str, dict[str, dict[str, object]]]) -> None:
    config["text_config"]["rope_parameters"]["rope_theta"] = 1e6


def _sorted(_: object) -> None:
    """Written again, with its keys in order."""


REGRESSIONS = (
    _vision("one row is missing", edits.zero_row("visual.merger.mlp.2.weight", 17)),
    _vision("two blocks are swapped", edits.swap_layers(VISION_BLOCK)),
    _vision("colours in the wrong order", edits.edit_weights(edits.flip_channels)),
    _vision("pixels are normalised by old constants", edits.edit_json(_PROCESSOR, _old_pixels)),
    _vision("4 bits", edits.round_weights("visual.", 7)),
    _vision("bfloat16, where 0.001 is tolerated", None, "--dtype", "bfloat16", "--tolerance", "0.001"),
    _vision("late", None, *_engine("late"), shows="time"),
    _vision("fails now and then", None, *_engine("failing")),
    _vision("gives the result of the request before", None, *_engine("stale")),
    _vision("gives other results each time", None, *_engine("noisy")),
    _vision("fails two requests at once", None, *_engine("single"), "--share", "0.5", shows="failures"),
    _thinker("one row is missing", edits.zero_row("model.layers.1.mlp.down_proj.weight", 17)),
    _thinker("two layers are swapped", edits.swap_layers(LAYER)),
    _thinker("one tensor is missing", edits.zero_tensor("model.layers.0.self_attn.v_proj.weight")),
    _thinker("other base of rotary positions", edits.edit_json("config.json", _other_base)),
    _thinker("other system prompt", edits.edit_text(_TEMPLATE, "helpful assistant", "poet")),
    _thinker("prompt does not begin the answer", edits.edit_text(_TEMPLATE, _START, "")),
    _thinker("two tokens are swapped", edits.edit_json(_TOKENIZER, edits.swap_tokens)),
    _thinker("bfloat16", None, "--dtype", "bfloat16"),
    _thinker("late tokens", None, *_engine("late_steps"), shows="time"),
    Case("plan: path through a late executor", flags=("--path", "EL"), stage="vision", shows="time"),
)


def _harmless(name: str, edit: Edit | None = None, *flags: str) -> tuple[Case, Case]:
    return Case(f"vision: {name}", "E", edit, flags), Case(f"thinker: {name}", "L", edit, flags)


HARMLESS = (
    *_harmless("a copy", edits.keep),
    *_harmless("weights in two files", edits.shard_weights),
    *_harmless("one more file", edits.add_file),
    *_harmless("configuration written again", edits.edit_json("config.json", _sorted)),
    *_harmless("weights off by a millionth", edits.add_noise("", 1e-6)),
    *_harmless("float32 by name", None, "--dtype", "float32"),
    *_harmless("batches of 4", None, "--batch", "4"),
    *_harmless("batches of 32", None, "--batch", "32"),
    *_harmless("an engine that does the same", None, *_engine("plain")),
    *_harmless("two replicas of a copy", edits.keep, "--replicas", "2"),
)
