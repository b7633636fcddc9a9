"""Curves of components: seconds of a batch, from the profile of one component alone."""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from omnibus.executor.sim.distributions import Curve, SizeDistribution
from omnibus.executor.sim.profile import ANY, SimComponent, SimOutput
from omnibus.profile import ModelProfile, OptionProfile
from omnibus_planner.simulate.saturate import BATCH_ROWS
from omnibus_planner.simulate.streams import StreamSizes

#: Samples in a second of speech.
_RATE = 24000
#: Rows of a batch of a vocoder, and the factor of a chunk alone over one in a full batch: its latency in a profile is
#: that of the talker before it.
_VOCODER_ROWS, _ALONE_FACTOR = 4, 2.0
#: Largest fraction of a full batch's seconds that may be the batch's constant cost.
_MAX_BASE_FRACTION = 0.9
#: Tokens of an answer of unknown length.
_USUAL_TOKENS = 64.0
#: Seconds of free work.
_NOTHING_SECONDS = 1e-6


class Sample(NamedTuple):
    """One request type on one component: its weight, seconds and sizes.

    ``full`` and ``alone`` are seconds on a full replica and alone. ``first`` is the seconds to the first token alone, 0
    if not measured.
    """

    share: float
    full: float
    alone: float
    sizes: Mapping[str, float]
    first: float = 0.0

    def size(self, name: str) -> float:
        return self.sizes.get(name, 0.0)


def component_samples(part: str, profile: ModelProfile, options: Mapping[str, OptionProfile]) -> Iterator[Sample]:
    """Yield the work of ``part`` alone.

    It is from an option that runs it alone, else from a role, else its share of a role.
    """
    for wanted in (lambda option: option.components == (part,), lambda _: True):
        found = [
            sample for option in options.values() if wanted(option) for sample in _role_samples(part, option, profile)
        ]
        if found:
            yield from found
            return
    for option in options.values():
        for work in option.work:
            if part in work.components:
                each = len(work.components)
                yield from _samples(profile, work.type, work.seconds / each, work.latency / each, part)


def _role_samples(part: str, option: OptionProfile, profile: ModelProfile) -> Iterator[Sample]:
    rows = [work for work in option.work if work.components == (part,)]
    for work in rows:
        yield from _samples(profile, work.type, work.seconds, work.latency, part, work.first_token)
    if not rows and option.rate > 0 and option.components == (part,):
        using = sum(kind.share for kind in profile.types.values() if part in kind.components)
        yield from _samples(profile, "", 1.0 / option.rate / using if using > 0 else 0.0, 0.0, part)


def _samples(
    profile: ModelProfile, kind: str, full: float, alone: float, part: str, first: float = 0.0
) -> Iterator[Sample]:
    """Yield a sample per request type of a row; for a row without type, all that use ``part``."""
    for name, each in profile.types.items():
        if part in each.components and kind in ("", name, "+".join(each.components)):
            yield Sample(each.share or 1e-6, full, alone or full, each.quantities, first)


def build_component(
    kind: str, part: str, samples: list[Sample], encoders: Mapping[str, str], streams: StreamSizes
) -> SimComponent:
    """Return component ``part`` of ``kind`` with the speed of ``samples``.

    Its messages have the sizes of ``streams``.
    """
    if kind == "encode":
        sizes = {name: _mean(samples, f"{name}_tokens") for name, encoder in encoders.items() if encoder == part}
        tokens = sum(sizes.values())
        return SimComponent(
            kind="encode", batch=_pass_curve(samples, tokens), tokens={ANY: max(1.0, tokens)}, slots=BATCH_ROWS
        )
    if kind in ("think", "decode"):
        samples = [_with_answer(each) for each in samples]
        batch, step = _step_curves(samples, prompts=kind == "think")
        steps = SizeDistribution(mean=_mean(samples, "completion_tokens"))
        named: Literal["think", "decode"] = "think" if kind == "think" else "decode"
        return SimComponent(kind=named, batch=batch, step=step, steps=steps, slots=BATCH_ROWS, chunk=streams.tokens)
    if kind == "prefill":
        return SimComponent(
            kind="prefill", batch=_pass_curve(samples, _mean(samples, "prompt_tokens")), slots=BATCH_ROWS
        )
    if kind == "talk":
        return _build_talker(samples, streams)
    if kind == "vocode":
        return _build_vocoder(samples, streams)
    return SimComponent(kind="any", batch=_pass_curve(samples, 0.0), outputs={"result": SimOutput()}, slots=BATCH_ROWS)


def _with_answer(sample: Sample) -> Sample:
    """Add a usual answer's tokens to ``sample`` if it has none."""
    return sample._replace(sizes={"completion_tokens": _USUAL_TOKENS, **sample.sizes})


def _mean(samples: list[Sample], name: str = "") -> float:
    """Return the mean size; without a name, a full replica's mean seconds."""
    total = sum(sample.share for sample in samples)
    return sum(sample.share * (sample.size(name) if name else sample.full) for sample in samples) / total


def _mean_alone(samples: list[Sample]) -> float:
    return sum(sample.share * sample.alone for sample in samples) / sum(sample.share for sample in samples)


def _split_base(full: float, alone: float, rows: int) -> tuple[float, float]:
    """Return a batch's constant seconds, and seconds of each item.

    They follow from seconds per item of a full batch, and of one item alone.
    """
    base = max(0.0, alone - full) * rows / (rows - 1)
    base = max(_NOTHING_SECONDS, min(base, _MAX_BASE_FRACTION * full * rows))
    return base, max(_NOTHING_SECONDS, full - base / rows)


def _pass_curve(samples: list[Sample], tokens: float) -> Curve:
    base, each = _split_base(_mean(samples), _mean_alone(samples), BATCH_ROWS)
    return Curve(base=base, per_token=each / tokens) if tokens > 0 else Curve(base=base, per_item=each)


def _step_curves(samples: list[Sample], prompts: bool) -> tuple[Curve, Curve]:
    """Return the curves of prompts and steps: least squares over the request types."""
    token = _fit_prompt_token(samples) if prompts else 0.0
    prompt = Curve(base=_prompt_base(samples, token) if prompts else _NOTHING_SECONDS, per_token=token)
    step = _fit_steps(samples, prompt, alone=False)
    base, each = _split_base(step, max(step, _fit_steps(samples, prompt, alone=True)), BATCH_ROWS)
    return prompt, Curve(base=base, per_item=each)


def _prompt_base(samples: list[Sample], token: float) -> float:
    """Return the constant seconds of a prompt: the rest of the first token's time.

    Each token of the prompt takes ``token`` seconds.
    """
    known = [each for each in samples if each.first > 0]
    rest = sum(each.share * max(0.0, each.first - token * each.size("prompt_tokens")) for each in known)
    return max(_NOTHING_SECONDS, rest / sum(each.share for each in known)) if known else _NOTHING_SECONDS


def _fit_prompt_token(samples: list[Sample]) -> float:
    """Return the seconds of a prompt token on a full replica.

    It is 0 if the request types do not separate it from a step.
    """
    reads = [(each.share, each.size("prompt_tokens"), _steps(each), each.full) for each in samples]
    pp, ps, ss = (
        sum(w * a * b for w, a, b in rows)
        for rows in (
            [(w, p, p) for w, p, _, _ in reads],
            [(w, p, s) for w, p, s, _ in reads],
            [(w, s, s) for w, _, s, _ in reads],
        )
    )
    py, sy = sum(w * p * y for w, p, _, y in reads), sum(w * s * y for w, _, s, y in reads)
    whole = pp * ss - ps * ps
    prompt = (py * ss - sy * ps) / whole if whole > 1e-9 * pp * ss and pp > 0 else 0.0
    return prompt if prompt > 0 and sy > ps * prompt else 0.0


def _steps(sample: Sample) -> float:
    """Return an answer's steps after its prompt.

    The prompt returns the first token.
    """
    return max(0.5, sample.size("completion_tokens") - 1)


def _fit_steps(samples: list[Sample], prompt: Curve, *, alone: bool) -> float:
    """Return the seconds of a step, given those of a ``prompt``."""
    over = below = 0.0
    for each in samples:
        steps = _steps(each)
        seconds = (each.alone if alone else each.full) - prompt.seconds(1, round(each.size("prompt_tokens")))
        over, below = over + each.share * steps * max(0.0, seconds), below + each.share * steps * steps
    return max(over / below, _NOTHING_SECONDS)


def _build_talker(samples: list[Sample], streams: StreamSizes) -> SimComponent:
    codes = _mean_codes(samples, streams)
    base, each = _split_base(_mean(samples) / codes, _mean_alone(samples) / codes, BATCH_ROWS)
    words = max(1.0, _mean(samples, "completion_tokens"))
    return SimComponent(
        kind="talk",
        step=Curve(base=base, per_item=each),
        steps=SizeDistribution(per=codes / words),
        slots=BATCH_ROWS,
        chunk=streams.codes,
    )


def _build_vocoder(samples: list[Sample], streams: StreamSizes) -> SimComponent:
    chunk = _mean(samples) / _mean_codes(samples, streams) * streams.codes
    base, each = _split_base(chunk, _ALONE_FACTOR * chunk, _VOCODER_ROWS)
    return SimComponent(
        kind="vocode",
        batch=Curve(base=base, per_token=each / streams.codes),
        slots=_VOCODER_ROWS,
        samples=round(_RATE / streams.codes_per_second),
        rate=_RATE,
    )


def _mean_codes(samples: list[Sample], streams: StreamSizes) -> float:
    seconds = _mean(samples, "speech_seconds")
    return max(1.0, seconds * streams.codes_per_second if seconds > 0 else 2 * _mean(samples, "completion_tokens"))
