"""Numbers of a model derived from measurements of its options.

These are sizes, lines, memory and contradictions.

Seconds of a component as a line over a request's quantities: a ``base`` and seconds ``per`` token.
"""

import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import msgspec
import numpy as np

from omnibus.plan import DeploymentOption
from omnibus.profile import CostLine, EdgeProfile, KeyValues, ModelProfile, OptionProfile, RoleCost
from omnibus.profiling.client import TimedAnswer
from omnibus.profiling.measured_model import SPEECH, Subject
from omnibus.profiling.measurements import CostSample, OptionMeasurement
from omnibus.profiling.memory import GB

#: Unknowns of a line at most, its base included.
MAX_UNKNOWNS = 3
#: Quantities that differ by less than this part of their largest are ignored.
MIN_SPREAD = 0.05


def solve_nonnegative(rows: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Least squares without negative unknowns: ``rows`` [n, k] float, ``target`` [n] float, the result [k].

    Exact: of all choices of unknowns that are not zero, the best whose solution has no negative one.
    """
    count = rows.shape[1]
    best, left = np.zeros(count), float(target @ target)
    for size in range(1, count + 1):
        for some in combinations(range(count), size):
            part = rows[:, some]
            solution = np.linalg.lstsq(part, target, rcond=None)[0]
            error = part @ solution - target
            if (solution >= 0).all() and float(error @ error) < left * (1 - 1e-9):
                best, left = np.zeros(count), float(error @ error)
                best[list(some)] = solution
    return best


def fit_line(samples: Sequence[tuple[Mapping[str, float], float]], quantities: Sequence[str]) -> CostLine | None:
    """Return the line through ``samples``: quantities and seconds of requests.

    Returns None if they do not differ enough.
    """
    spread = (
        {name: _relative_spread([each.get(name, 0.0) for each, _ in samples]) for name in quantities} if samples else {}
    )
    names = sorted((name for name, width in spread.items() if width >= MIN_SPREAD), key=lambda name: -spread[name])
    names = names[: min(MAX_UNKNOWNS, len(samples)) - 1] if len(samples) > 1 else []
    if not names:
        return None
    rows = np.array([[1.0, *(each.get(name, 0.0) for name in names)] for each, _ in samples])
    scale = rows.max(axis=0)
    coefficients = solve_nonnegative(rows / scale, np.array([seconds for _, seconds in samples])) / scale
    per = {name: float(value) for name, value in zip(names, coefficients[1:], strict=True) if value > 0}
    return CostLine(base=float(coefficients[0]), per=per) if per else None


def quantity_names(subject: Subject, component: str) -> tuple[str, ...]:
    """Return the quantities that the seconds of ``component`` may depend on."""
    read = tuple(f"{modality}_tokens" for modality, part in subject.encoders.items() if part == component)
    if read:
        return read
    return ("speech_seconds",) if component in SPEECH else ("prompt_tokens", "completion_tokens")


def _relative_spread(values: Sequence[float]) -> float:
    top = max(values)
    return (top - min(values)) / top if top > 0 else 0.0


#: Quantities that answers of one token show as well as whole ones.
_INPUT_QUANTITIES = frozenset(("prompt_tokens", "image_tokens", "video_tokens", "audio_tokens"))
#: Quantities that rows of answers grow with; codes with the first.
_ANSWER_QUANTITIES = ("speech_seconds", "completion_tokens")
#: Part by which an option's rate and the sum of its work may differ without a note.
MAX_DISAGREEMENT = 0.1


def lined_components(subject: Subject, options: Mapping[str, DeploymentOption]) -> dict[str, list[str]]:
    """Return the components whose line each option measures: the smallest of ``options`` with the component."""
    components_by_option: dict[str, list[str]] = {}
    for component in subject.components:
        hosts = [name for name, option in options.items() if component in option.components]
        if hosts:
            components_by_option.setdefault(min(hosts, key=lambda name: len(options[name].components)), []).append(
                component
            )
    return components_by_option


def mean_sizes(measurements: Iterable[OptionMeasurement]) -> dict[str, dict[str, float]]:
    """Return the mean quantities per request by request type.

    They are those of the requests whose seconds were measured. Other quantities are taken from
    requests sent one at a time, such as the length of answers if only encoders were measured.
    """
    means: dict[str, dict[str, float]] = {}
    groups: dict[str, list[tuple[float, Mapping[str, float], bool]]] = {}
    for each in measurements:
        means = {**each.quantities, **means}
        for kind, _, row in _role_means(each.samples):
            groups.setdefault(kind, []).append(row)
    for kind, rows in groups.items():
        own_means = dict(means.get(kind, {}))
        for name in {*own_means, *(name for _, sizes, _ in rows for name in sizes)}:
            counted_values = [
                (count, sizes.get(name, 0.0)) for count, sizes, short in rows if not short or name in _INPUT_QUANTITIES
            ]
            total = sum(count for count, _ in counted_values)
            if total:
                own_means[name] = sum(count * value for count, value in counted_values) / total
        means[kind] = {name: value for name, value in sorted(own_means.items()) if value}
    return means


def _role_means(
    samples: Iterable[CostSample],
) -> Iterator[tuple[str, tuple[str, ...], tuple[float, Mapping[str, float], bool]]]:
    """Yield the type and components of each role, with its mean.

    The mean is the number of answers, the mean quantities, and whether the answers were short.
    """
    roles: dict[tuple[str, tuple[str, ...]], list[CostSample]] = {}
    for sample in samples:
        if sample.share and sample.count:
            roles.setdefault((sample.kind, sample.role), []).append(sample)
    for (kind, role), role_samples in roles.items():
        total = sum(sample.share for sample in role_samples)
        names = {name for sample in role_samples for name in sample.quantities}
        sizes = {name: sum(one.share * one.quantities.get(name, 0.0) for one in role_samples) / total for name in names}
        yield kind, role, (float(sum(sample.count for sample in role_samples)), sizes, role_samples[0].short)


def fit_lines(subject: Subject, measurements: Collection[OptionMeasurement]) -> dict[str, CostLine]:
    """Fit a line for each component.

    It uses the smallest option that has the component and whose requests differ.
    """
    lines = {}
    for component in subject.components:
        hosts = [each for each in measurements if component in each.option.components and each.samples]
        for host in sorted(hosts, key=lambda each: len(each.option.components)):
            samples = [(each.quantities, each.seconds[component]) for each in host.samples if component in each.seconds]
            line = fit_line(samples, quantity_names(subject, component))
            if line is not None:
                lines[component] = line
                break
    return lines


def seconds_to_first_token(latency: float, answers: Iterable[TimedAnswer]) -> tuple[float, float]:
    """Return the part of ``latency`` until the first token, and its overhead.

    The overhead is the rest of the time that clients waited for the first token. ``latency`` is that of executors whose
    last token ends it, and ``answers`` belong to the same requests. Both are 0 if no answer was streamed.
    """
    streamed_answers = [each for each in answers if each.gaps]
    if not streamed_answers or not latency:
        return 0.0, 0.0
    first = max(0.0, latency - sum(sum(each.gaps) for each in streamed_answers) / len(streamed_answers))
    mean_latency = sum(each.first_token for each in streamed_answers) / len(streamed_answers)
    return first, max(0.0, mean_latency - first)


def median_overhead(measurements: Iterable[OptionMeasurement]) -> float:
    """Return the median seconds of a request outside executors.

    It is 0 if no option ran all components of a request.
    """
    seconds_outside = [seconds for each in measurements for seconds in each.overheads]
    return statistics.median(seconds_outside) if seconds_outside else 0.0


def scale_work(
    option: OptionProfile,
    samples: Collection[CostSample],
    lines: Mapping[str, CostLine],
    sizes: Mapping[str, Mapping[str, float]],
) -> tuple[RoleCost, ...]:
    """Return the work of ``option`` for requests with the mean ``sizes``.

    Each option was measured with different requests, whose means differ by chance. The lines of its components correct
    that.
    """
    role_sizes = {(kind, role): own for kind, role, (_, own, _) in _role_means(samples)}
    scaled_work = []
    for work in option.work:
        own, now = role_sizes.get((work.type, work.components)), sizes.get(work.type)
        if own and now and {*work.components} <= lines.keys():
            before, after = (
                sum(lines[part].seconds({**now, **each}) for part in work.components) for each in (own, {})
            )
            work = msgspec.structs.replace(work, seconds=work.seconds * after / before) if before > 0 else work
        scaled_work.append(work)
    return tuple(scaled_work)


def measured_edges(
    measurements: Iterable[OptionMeasurement], sizes: Mapping[str, Mapping[str, float]]
) -> tuple[EdgeProfile, ...]:
    """Return edges between components, with rows for the mean ``sizes``.

    Edges are measured with a few requests one at a time, whose answers are shorter or longer than the mean by chance.
    """
    edge_profiles: dict[tuple[str, str, str], EdgeProfile] = {}
    for each in measurements:
        for edge in each.edges:
            own, mean = each.quantities.get(edge.type, {}), sizes.get(edge.type, {})
            quantity_names = [name for name in _ANSWER_QUANTITIES if own.get(name) and mean.get(name)]
            factor = mean[quantity_names[0]] / own[quantity_names[0]] if quantity_names else 1.0
            scaled_edge = msgspec.structs.replace(edge, rows=edge.rows * factor)
            edge_profiles.setdefault((edge.source, edge.target, edge.type), scaled_edge)
    return tuple(edge_profiles.values())


def key_values(measurements: Iterable[OptionMeasurement]) -> KeyValues | None:
    """Return the memory for keys and values of the first reporting engine.

    Small options are searched first. On CPUs only the number of slots limits it, so its memory is left out.
    """
    for each in sorted(measurements, key=lambda each: len(each.option.components)):
        for component, (per_token, room) in each.kv.items():
            on_gpu = each.option.gpu_memory_gb > 0
            has = room / GB / max(1, each.option.gpus) + each.option.weights_gb / max(1, each.option.gpus)
            return KeyValues(component, per_token / GB, has if on_gpu else 0.0)
    return None


def contradictions(profile: ModelProfile) -> Iterator[str]:
    """Yield notes on options with contradictory rates, and on missing lines."""
    for name, option in profile.options.items():
        mix_seconds = _mix_seconds(profile, option)
        if not mix_seconds or not option.rate:
            continue
        if abs(option.rate * mix_seconds - 1.0) > MAX_DISAGREEMENT:
            yield (
                f"{name} serves {option.rate:.3g} req/s of the mix, but its seconds of each type alone add up to "
                f"{1 / mix_seconds:.3g} req/s: types cost more, or less, together than apart"
            )
    missing = [part for part in profile.components if part not in profile.lines and _is_measured(profile, part)]
    if missing:
        yield f"{', '.join(missing)}: no line over sizes, since seconds did not grow with them"


def _mix_seconds(profile: ModelProfile, option: OptionProfile) -> float:
    """Return the option's seconds per request of the mix.

    They follow from its work on whole requests, and are 0 if a type of the mix is missing.
    """
    total = 0.0
    for kind, each in profile.types.items():
        role = frozenset(option.components) & frozenset(each.components)
        role_seconds = [
            work.seconds for work in option.work if work.type == kind and frozenset(work.components) == role
        ]
        if role and not role_seconds:
            return 0.0
        total += each.share * (role_seconds[0] if role_seconds else 0.0)
    return total


def _is_measured(profile: ModelProfile, part: str) -> bool:
    return any(part in work.components for option in profile.options.values() for work in option.work)
