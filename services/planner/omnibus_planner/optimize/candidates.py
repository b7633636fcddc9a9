"""Options that a model can be deployed as: measured and, if requested, estimated ones that fit the GPUs.

Names become names of a plan: ``L@H100`` is ``L_H100``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from omnibus.bus.subjects import subject_token
from omnibus.errors import BadRequest
from omnibus.families.plugins import join_names
from omnibus.plan import CPU
from omnibus.profile import ModelProfile, OptionProfile
from omnibus_planner.declared.model import Model, require_valid_model
from omnibus_planner.declared.planned_spec import ALL, GpuType
from omnibus_planner.optimize.kv_memory import KvMemory
from omnibus_planner.solve.enumerate import GAMMA, Gpu, enumerate_options
from omnibus_planner.solve.problem import Infeasible, SolverOption

#: GB of a GPU whose memory is unknown: any weights fit.
_UNKNOWN_MEMORY_GB = 1e9
#: The kinds of unit task that executors of LLMs run, and that those of encoders run; generators run all others.
_LLM, _ENCODER = ("think", "talk", "prefill", "decode"), ("encode",)


class Hardware(NamedTuple):
    """Type and number of the GPUs of one replica."""

    gpu: str
    gpus: int
    tp: int


class UsableOptions(NamedTuple):
    """Options by their names in plans, and why others were excluded."""

    options: dict[str, OptionProfile]
    left: dict[str, str]


def option_hardware(option: OptionProfile) -> Hardware:
    return Hardware(option.gpu, option.gpus, option.tp or option.gpus)


def usable_options(model: Model, profile: ModelProfile, gpus: Mapping[str, GpuType], memory: KvMemory) -> UsableOptions:
    """Return the options of ``profile`` that ``model`` can use on ``gpus`` (empty: on any).

    Raises ``BadRequest`` for unknown and ambiguous names, and for a component without a measurement; ``Infeasible`` for
    a component whose options fit no GPU.
    """
    named = _select_options(model, _options_by_name(model, profile))
    found, left = UsableOptions({}, {}), dict[str, str]()
    for name, option in named.items():
        if strange := sorted(set(option.components) - set(model.components)):
            left[name] = f"the model has no {join_names(strange)}"
            continue
        option = msgspec.structs.replace(option, gpu=_gpu_type(model, name, option.gpu, gpus))
        fault = _find_misfit(option, gpus) or memory.find_misfit(option)
        if fault:
            left[name] = fault
        else:
            found.options[name] = option
    if model.planned is not None and model.planned.options == ALL:
        others = dict(_estimated_options(model, found.options, gpus))
        found.options.update({name: option for name, option in others.items() if not memory.find_misfit(option)})
    _check_coverage(model, profile, found.options, left)
    return UsableOptions(found.options, left)


def to_solver_option(option: OptionProfile, gpus: Mapping[str, GpuType]) -> SolverOption:
    """Convert ``option`` for the solver; without a price it costs as much as its GPUs."""
    known = gpus.get(option.gpu)
    price = option.price if option.price is not None else known.weight * option.gpus if known else None
    return SolverOption(
        option.components, option.gpus, option.gpu, option.tp, option.weights_gb, price, max(0.0, option.start_s)
    )


def option_service(model: Model, option: OptionProfile) -> str:
    """Return the service that runs the option.

    It is the measured service, else the family's for exactly these components. Else it is the first of llm, generator
    and encoder that runs one of them alone or is usual for its kind.
    """
    if option.service:
        return option.service
    same = [known for known in model.usual.values() if set(known.components) == set(option.components)]
    if same:
        return same[0].service
    alone = {known.components[0]: known.service for known in model.usual.values() if len(known.components) == 1}
    services = {alone.get(part) or _by_kind(model.kinds[part]) for part in option.components}
    return next(name for name in ("llm", "generator", "encoder") if name in services)


def _by_kind(kind: str) -> str:
    return "llm" if kind in _LLM else "encoder" if kind in _ENCODER else "generator"


def _options_by_name(model: Model, profile: ModelProfile) -> dict[str, OptionProfile]:
    found: dict[str, OptionProfile] = {}
    called: dict[str, str] = {}
    for name, option in profile.options.items():
        legal = subject_token(name)
        require_valid_model(
            legal not in found,
            model.name,
            f"options {called.get(legal)!r} and {name!r} of its profile are both called {legal!r} in plans: rename one",
        )
        found[legal], called[legal] = option, name
    require_valid_model(bool(found), model.name, "has a profile without options: measure some with `omnibus profile`")
    return found


def _select_options(model: Model, named: dict[str, OptionProfile]) -> dict[str, OptionProfile]:
    wanted = model.planned.options if model.planned is not None else None
    if wanted is None or isinstance(wanted, str):
        return named
    unknown = [name for name in wanted if subject_token(name) not in named]
    require_valid_model(
        not unknown, model.name, f"planned options name {join_names(unknown)}; the profile has {join_names(named)}"
    )
    names = {subject_token(name) for name in wanted}
    return {name: option for name, option in named.items() if name in names}


def _gpu_type(model: Model, name: str, gpu: str, gpus: Mapping[str, GpuType]) -> str:
    """Return the GPU type of an option; one measured without a type gets the only available one."""
    if gpu or not gpus:
        return gpu
    real = [kind for kind in gpus if kind != CPU] or list(gpus)
    require_valid_model(
        len(real) == 1,
        model.name,
        f"option {name} does not say its GPU type, and there is {join_names(real)}: add 'gpu' to its profile",
    )
    return real[0]


def _find_misfit(option: OptionProfile, gpus: Mapping[str, GpuType]) -> str:
    """Return why the option cannot run on ``gpus``; empty if it can."""
    if not gpus:
        return ""
    if option.gpu not in gpus:
        return f"it takes GPUs of type {option.gpu}; there is {join_names(gpus)}"
    has = gpus[option.gpu].memory_gb * option.gpus
    if not has:
        return ""
    there = f"{option.gpus} x {option.gpu} has {has:g} GB"
    if option.memory_gb > has:
        return f"it takes {option.memory_gb:g} GB; {there}"
    if option.weights_gb > GAMMA * has:
        return f"its weights take {option.weights_gb:g} GB; {there}, of which {GAMMA:.0%} are for weights"
    return ""


def _check_coverage(
    model: Model, profile: ModelProfile, found: Mapping[str, OptionProfile], left: Mapping[str, str]
) -> None:
    for part in model.components:
        if part in model.shares or any(part in option.components for option in found.values()):
            continue
        reasons = [f"{name}: {fault}" for name, fault in left.items() if part in profile_of(profile, name)]
        if reasons:
            raise Infeasible(
                f"model {model.name}: component {part} fits no GPU at hand ({'; '.join(reasons)}): measure it with a "
                "higher tensor-parallel degree, or give it larger GPUs"
            )
        measured = any(part in option.components for option in profile.options.values())
        fault = (
            f"planned options leave out all that run {part}"
            if measured
            else f"no option of its profile runs component {part}: measure one with `omnibus profile`"
        )
        raise BadRequest(f"model {model.name}: {fault}")


def profile_of(profile: ModelProfile, name: str) -> tuple[str, ...]:
    """Return the components of the option with ``name`` in plans."""
    return next((option.components for key, option in profile.options.items() if subject_token(key) == name), ())


# Estimated options


def _estimated_options(
    model: Model, known: Mapping[str, OptionProfile], gpus: Mapping[str, GpuType]
) -> Iterable[tuple[str, OptionProfile]]:
    """Yield all further sets of components, on hardware that measured each alone."""
    singles: dict[Hardware, dict[str, OptionProfile]] = {}
    for option in known.values():
        if len(option.components) == 1 and option.is_measured:
            singles.setdefault(option_hardware(option), {}).setdefault(option.components[0], option)
    there = {(option_hardware(option), frozenset(option.components)) for option in known.values()}
    taken = set(known)
    for kind, alone in singles.items():
        for made in _option_sets(kind, {part: alone[part] for part in model.components if part in alone}, gpus):
            if (kind, frozenset(made.components)) not in there:
                name = _free_name(model, made, kind, len(singles) > 1, taken)
                taken.add(name)
                yield name, made


def _option_sets(
    kind: Hardware, alone: Mapping[str, OptionProfile], gpus: Mapping[str, GpuType]
) -> Iterable[OptionProfile]:
    memory = gpus[kind.gpu].memory_gb if kind.gpu in gpus else 0.0
    weights = {part: option.weights_gb for part, option in alone.items()}
    starts = {part: option.start_s for part, option in alone.items()}
    for made in enumerate_options(
        weights, {kind.gpu: Gpu(memory or _UNKNOWN_MEMORY_GB)}, (kind.gpus,), start_s=starts
    ).values():
        parts = [alone[part] for part in made.components]
        settings = _common_settings(parts)
        if settings is None:
            continue
        prices = [part.price for part in parts if part.price is not None]
        takes = OptionProfile(
            components=made.components,
            engine=next((part.engine for part in parts if part.engine), ""),
            gpus=kind.gpus,
            gpu=kind.gpu,
            tp=kind.tp,
            price=max(prices) if prices else None,
            start_s=made.start_s,
            memory_gb=sum(part.memory_gb for part in parts),
            weights_gb=made.weights_gb,
            checkpoint=settings.checkpoint,
            dtype=settings.dtype,
            vllm=settings.vllm,
        )
        if not _find_misfit(takes, gpus):
            yield takes


def _common_settings(parts: Sequence[OptionProfile]) -> OptionProfile | None:
    """Return the part whose settings suit an executor of all ``parts``; None if their settings differ."""
    shared = {(part.checkpoint, part.dtype) for part in parts}
    engines = [part for part in parts if part.vllm is not UNSET]
    if len(shared) > 1 or any(part.vllm != engines[0].vllm for part in engines):
        return None
    return engines[0] if engines else parts[0]


def _free_name(model: Model, made: OptionProfile, kind: Hardware, several: bool, taken: set[str]) -> str:
    """Return an unused name: the family's for these components, or their names joined."""
    where = f"-tp{kind.gpus}" if kind.gpus > 1 else ""
    where += f"-{kind.gpu}" if several and kind.gpu else ""
    usual = [name for name, known in model.usual.items() if set(known.components) == set(made.components)]
    names = [subject_token(name + where) for name in [*usual, model.option_name(made.components)]]
    names += [f"{names[-1]}-{number}" for number in range(2, 100)]
    return next(name for name in names if name not in taken)
