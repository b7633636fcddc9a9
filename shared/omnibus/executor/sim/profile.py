"""The profile of simulated executors: a JSON file with their times and sizes. For example:

{"time_scale": 0.1, "seed": 1, "jitter": 0.05,
 "default": {"startup": 30, "components": {
    "vision":  {"slots": 8, "batch": {"points": [[1, 0.030], [4, 0.075], [8, 0.140]]},
                "tokens": {"image": {"mean": 650, "cv": 0.5}, "video": 8000}, "width": 64},
    "audio":   {"slots": 8, "batch": {"base": 0.01, "per_token": 2e-5}, "tokens": {"audio": {"per": 1.6}}},
    "thinker": {"slots": 32, "share": 2048,
                "batch": {"base": 0.004, "per_token": 5e-5, "saturation": 256},
                "step":  {"base": 0.020, "per_item": 1e-4, "per_token": 1e-8},
                "steps": {"mean": 130, "cv": 1.0, "most": 2048}, "width": 64},
    "talker":  {"slots": 32, "batch": {"base": 0.005}, "step": {"base": 0.012, "per_item": 5e-5},
                "steps": {"per": 10}},
    "vocoder": {"slots": 4, "batch": {"base": 0.02, "per_token": 1e-3}, "samples": 480, "rate": 24000},
    "denoiser": {"slots": 2, "step": {"points": [[1, 0.09], [2, 0.17]]}, "steps": 30,
                 "inputs": ["embeds", "mask"],
                 "outputs": {"latents": {"shape": [16, 1, 64, 64]}, "progress": {"stream": true}}}}},
 "options": {"EL": {"alpha": 1.15, "components": {"thinker": {"slots": 24}}},
             "other-model/L": {"startup": 60}}}

| of the profile | |
|---|---|
| `time_scale` | factor on all times: 0.1 is ten times faster than measured |
| `seed`, `jitter` | every time is multiplied by a number in 1 ± jitter, which depends on seed and job |
| `default`, `options` | options by `model/option` or by name; missing fields come from `default` |

| of an option | |
|---|---|
| `startup` | seconds until it is ready |
| `alpha` | factor on the seconds of its batches |
| `ttft`, `tbt` | goals: seconds to the first token, and between two. The schedule of the real engines composes
  steps for them (encoders and language models only). Without goals, works run in the order of arrival |
| `components` | missing fields come from the component of the default |

| of a component | |
|---|---|
| `kind` | encode, think, prefill, decode, talk, vocode or any; empty: the kind in the model's family |
| `slots` | items in a batch, or concurrent sequences if it has steps; 0: `OMNIBUS_EXECUTOR_BATCH` |
| `batch` | a curve: seconds of one batch. An LLM's and a talker's prompts |
| `step` | a curve: seconds of one step. Its items are sequences, and its tokens all of theirs so far |
| `share` | most tokens of one batch; longer prompts are cut, longer items run alone; 0: no limit |
| `tokens` | sizes by modality, or of `any`; `per` KiB of input. Encoders, and kind any |
| `steps` | a size: tokens of an answer; codes of a talker (`per` row, and at least one); steps of any |
| `chars` | characters of text that are one token |
| `answers` | of a thinker: rules; the first one that matches is the answer, see below |
| `tool_format` | format of the calls in them: hermes (the default), llama3, mistral or gemma |
| `chunk` | tokens, codes or steps in a message; few are slow to simulate; 0: 1, and 12 codes |
| `width`, `dtype` | of embeddings [tokens, width], rows and caches |
| `samples`, `rate` | of a vocoder, per code and per second |
| `inputs`, `streams`, `outputs` | of kind any: names of inputs from other nodes, and its outputs: `shape`,
  `dtype`, `data` (small JSON), and whether it is a `stream` of one chunk per message |

A rule of `answers` matches a last message by its `role` (user, or tool for the result of a call) that `contains`
a text. Case is ignored. The request must also permit the answer: it offers all called tools, and the answer obeys
`tool_choice` and `parallel_tool_calls`. The answer is `text`, `calls` of functions (`name`, `arguments`), or both,
after `reasoning` if the rule has it. A token is `chars` characters of it.

A size is a number or ``Size``; a curve is ``Curve`` (``omnibus.executor.sim.distributions``).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from omnibus.errors import BadRequest
from omnibus.executor.sim.answers import WHOLE_CALLS, ScriptedAnswer, ToolFormatName
from omnibus.executor.sim.distributions import Amount, Count, Curve, Seconds, SizeDistribution
from omnibus.executor.step_budget import NO_GOALS, StepGoals
from omnibus.families import catalog

#: Modality that stands for all others.
ANY = "any"

Kind = Literal["", "encode", "think", "prefill", "decode", "talk", "vocode", "any"]
Factor = Annotated[float, msgspec.Meta(gt=0.0, le=1e6)]
Whole = Annotated[int, msgspec.Meta(ge=0)]
#: Types of numpy that the arena supports.
Dtype = Literal["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


class SimOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One output of kind any; without a ``shape`` it has no tensor."""

    shape: tuple[Count, ...] | None = None
    dtype: Dtype = "float32"
    data: dict[str, Any] = {}
    stream: bool = False


class SimComponent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One component of one option, complete."""

    kind: Kind = ""
    slots: Whole = 0
    batch: Curve | None = None
    step: Curve | None = None
    share: Whole = 0
    tokens: dict[str, Amount | SizeDistribution] = {}
    steps: Amount | SizeDistribution = 0.0
    chars: Annotated[float, msgspec.Meta(gt=0.0)] = 4.0
    answers: tuple[ScriptedAnswer, ...] = ()
    tool_format: ToolFormatName = "hermes"
    chunk: Whole = 0
    width: Count = 16
    dtype: Dtype = "float32"
    samples: Whole = 480
    rate: Count = 24000
    inputs: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    outputs: dict[str, SimOutput] = {}

    def __post_init__(self) -> None:
        if self.tool_format in WHOLE_CALLS and any(each.text and each.calls for each in self.answers):
            raise ValueError(
                f"models with calls in the format {self.tool_format} answer with `text` or `calls`, not both"
            )

    def tokens_of(self, modality: str) -> SizeDistribution | None:
        """Return the size of an item of ``modality``; None if the component does not support it."""
        found = self.tokens.get(modality, self.tokens.get(ANY))
        return None if found is None else _as_size(found)

    @property
    def steps_size(self) -> SizeDistribution:
        """Size of ``steps``."""
        return _as_size(self.steps)


class SimOption(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment option, complete."""

    name: str
    startup: float
    alpha: float
    components: dict[str, SimComponent]
    goals: StepGoals = NO_GOALS

    def find_component(self, name: str) -> SimComponent:
        """Return component ``name``. Raises ``BadRequest`` if the profile does not have it."""
        if name not in self.components:
            known = ", ".join(sorted(self.components)) or "none"
            raise BadRequest(f"{self.name} has no component {name!r}; there is {known}")
        return self.components[name]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A profile; ``name`` is for error messages."""

    name: str
    time_scale: float
    seed: int
    jitter: float
    default: SimOption
    options: dict[str, SimOption]

    def find_option(self, name: str, model: str = "") -> SimOption:
        """Return the option ``name`` of ``model``, or the default."""
        return self.options.get(f"{model}/{name}") or self.options.get(name) or self.default


class _OptionFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    startup: Seconds | None = None
    alpha: Factor | None = None
    ttft: Seconds | None = None
    tbt: Seconds | None = None
    components: dict[str, dict[str, Any]] = {}


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    default: _OptionFields = _OptionFields()
    options: dict[str, _OptionFields] = {}
    time_scale: Factor = 1.0
    seed: int = 0
    jitter: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] = 0.0


def read_profile(path: str) -> Profile:
    """Read a profile file. Raises ``BadRequest`` with the file, option and field of an error."""
    if not path:
        raise BadRequest("set OMNIBUS_EXECUTOR_PROFILE to the profile file that a simulated executor follows")
    try:
        body = Path(path).read_bytes()
    except OSError as error:
        raise BadRequest(f"the profile {path!r} cannot be read: {error.strerror}") from error
    return decode_profile(body, path)


def decode_profile(body: bytes, name: str = "the profile") -> Profile:
    """Decode a profile from its JSON. Raises ``BadRequest`` as ``read_profile`` does."""
    try:
        file = msgspec.json.decode(body, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(f"{name}: {error}") from error
    default = _merge_option(f"{name}: default", file.default, _OptionFields())
    return Profile(
        name=name,
        time_scale=file.time_scale,
        seed=file.seed,
        jitter=file.jitter,
        default=default,
        options={
            option: _merge_option(f"{name}: option {option}", given, file.default)
            for option, given in file.options.items()
        },
    )


def kind_of(name: str, part: SimComponent, family: str = "") -> str:
    """Return the kind of component ``name``: from the profile, its ``family``, or any family."""
    if part.kind:
        return part.kind
    try:
        families = [catalog.find_family(family)] if family else list(catalog.FAMILIES.values())
    except BadRequest:  # the family of a simulated model may be unknown
        families = []
    kinds = [each["tasks"][name] for each in families if name in each["tasks"]]
    return kinds[0] if kinds and kinds[0] in get_args(Kind) else ANY


def _merge_option(name: str, given: _OptionFields, default: _OptionFields) -> SimOption:
    names = {**default.components, **given.components}
    return SimOption(
        name=name,
        startup=_first_given(given.startup, default.startup, 0.0),
        alpha=_first_given(given.alpha, default.alpha, 1.0),
        goals=StepGoals(_first_given(given.ttft, default.ttft, 0.0), _first_given(given.tbt, default.tbt, 0.0)),
        components={
            part: _merge_component(
                f"{name}, component {part}", given.components.get(part, {}), default.components.get(part)
            )
            for part in names
        },
    )


def _merge_component(name: str, given: Mapping[str, Any], default: Mapping[str, Any] | None) -> SimComponent:
    try:
        return msgspec.convert({**(default or {}), **given}, SimComponent)
    except msgspec.ValidationError as error:
        raise BadRequest(f"{name}: {error}") from error


def _first_given(*values: float | None) -> float:
    return next(value for value in values if value is not None)


def _as_size(value: float | SizeDistribution) -> SizeDistribution:
    return value if isinstance(value, SizeDistribution) else SizeDistribution(mean=value)
