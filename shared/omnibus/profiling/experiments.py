"""Trials of deployment options: each with the other options that it needs, and its paths."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import msgspec

from omnibus.errors import BadRequest
from omnibus.plan import DeploymentOption
from omnibus.profiling.measured_model import Subject


class Trial(msgspec.Struct, frozen=True):
    """One option to measure, and the ``options`` that run with it.

    Each of ``paths`` names options in their order of precedence: the first that has a component runs it. On the first
    path, the option runs all its components.
    """

    option: str
    options: dict[str, DeploymentOption]
    paths: tuple[tuple[str, ...], ...]

    @property
    def components(self) -> tuple[str, ...]:
        return self.options[self.option].components

    def hosting_option(self, path: Sequence[str], component: str) -> str:
        """The option that runs ``component`` on ``path``."""
        return next(name for name in path if component in self.options[name].components)

    def role_components(self, path: Sequence[str], components: Iterable[str]) -> tuple[str, ...]:
        """The components of ``components`` that the option runs on ``path``."""
        return tuple(part for part in components if self.hosting_option(path, part) == self.option)

    def path_name(self, path: Sequence[str], components: Iterable[str]) -> str:
        """Return the name of ``path`` for ``components``, in data flow order."""
        return ">".join(dict.fromkeys(self.hosting_option(path, part) for part in components))


def choose_options(subject: Subject, only: Sequence[str] = (), every: bool = False) -> dict[str, DeploymentOption]:
    """Return the options to measure: the declared ones, ``only`` some, or ``every`` set of components.

    Raises ``BadRequest`` with the unknown names.
    """
    candidates = _own_options(subject)
    if every:
        candidates = {**candidates, **_all_options(subject, candidates.values())}
    unknown = [name for name in only if name not in candidates]
    if unknown:
        more = "" if every else "; --all-options has every set of components"
        raise BadRequest(f"{subject.name} has no option {', '.join(unknown)}; there is {', '.join(candidates)}{more}")
    return {name: option for name, option in candidates.items() if not only or name in only}


def vary_options(
    options: Mapping[str, DeploymentOption], batches: Sequence[int], degrees: Sequence[int]
) -> dict[str, DeploymentOption]:
    """Return ``options`` and their variants.

    Each option has a variant for each of ``batches``. An option with a language model also has one for each of
    ``degrees`` of tensor parallelism: that many GPUs for each stage of its pipeline.
    """
    variants = dict(options)
    for name, option in options.items():
        for size in batches:
            variants[f"{name}-b{size}"] = msgspec.structs.replace(option, batch=size)
        stages = int((option.vllm or {}).get("pipeline_parallel", 1))
        for degree in degrees:
            if degree > 1 and option.service == "llm" and degree * stages != option.gpus:
                variants[f"{name}-tp{degree}"] = msgspec.structs.replace(option, gpus=degree * stages)
    return variants


def make_trial(subject: Subject, name: str, option: DeploymentOption, other_replicas: int = 1) -> Trial:
    """Return the trial of ``option``.

    Other options that must run get ``other_replicas`` replicas each, borrowed ones none.
    """
    rest = _remaining_options(subject, option)
    prefixes = list(dict.fromkeys([*_declared_prefixes(subject, name), *_encoder_prefixes(subject, option)]))
    paths = [(name, *rest), *((*prefix, name, *rest) for prefix in prefixes if not subject.shares)]
    runs = {**_own_options(subject), **_single_options(subject), **_borrowed_options(subject), name: option}
    option_names = dict.fromkeys(each for path in paths for each in path)
    replicas = {each: 1 if each == name else 0 if runs[each].of else other_replicas for each in option_names}
    return Trial(
        option=name,
        options={each: msgspec.structs.replace(runs[each], replicas=count) for each, count in replicas.items()},
        paths=tuple(paths),
    )


def with_replicas(trial: Trial, counts: Mapping[str, int]) -> Trial:
    """Return ``trial`` with the numbers of replicas in ``counts``."""
    options = {
        name: msgspec.structs.replace(each, replicas=counts.get(name, each.replicas))
        for name, each in trial.options.items()
    }
    return msgspec.structs.replace(trial, options=options)


def trial_declarations(subject: Subject, trial: Trial) -> dict[str, Any]:
    """Return the declarations for ``trial`` and the models it borrows from."""
    entry = {
        **subject.declared,
        "options": {name: msgspec.to_builtins(each) for name, each in trial.options.items() if not each.of},
        "paths": [{"options": list(path), "share": 1} for path in trial.paths],
    }
    return {"models": {**subject.others, subject.name: entry}}


def _own_options(subject: Subject) -> dict[str, DeploymentOption]:
    """Return the options without components of another model."""
    return {name: each for name, each in subject.options.items() if {*each.components} <= {*subject.own_components}}


def _all_options(subject: Subject, existing_options: Iterable[DeploymentOption]) -> dict[str, DeploymentOption]:
    """Return every set of components that is not among ``existing_options``.

    Sets that a request would have to visit twice are left out.
    """
    there = {frozenset(option.components) for option in existing_options}
    options = {}
    for count in range(1, len(subject.own_components) + 1):
        for parts in combinations(subject.own_components, count):
            if frozenset(parts) not in there and not _visits_twice(subject, parts):
                options["-".join(parts)] = DeploymentOption(
                    parts, subject.host_service(parts), engine=_common_engine(subject)
                )
    return options


def _visits_twice(subject: Subject, parts: Sequence[str]) -> bool:
    """Return whether a component between two of ``parts`` runs elsewhere."""
    behind = _all_successors(subject)
    return any(
        middle not in parts and middle in behind[first] and last in behind[middle]
        for first in parts
        for last in parts
        for middle in subject.components
    )


def _all_successors(subject: Subject) -> Mapping[str, set[str]]:
    """Return all components that come after each component, directly or not."""
    successors: dict[str, set[str]] = {part: set() for part in subject.components}
    for part in reversed(subject.components):
        for before, after in subject.order:
            if before == part:
                successors[part] |= {after} | successors[after]
    return successors


def _common_engine(subject: Subject) -> str:
    engines = {option.engine for option in subject.options.values()}
    return engines.pop() if len(engines) == 1 else ""


def _single_options(subject: Subject) -> dict[str, DeploymentOption]:
    """An option for each component alone, for those that have none."""
    alone = {option.components for option in _own_options(subject).values()}
    return {
        part: DeploymentOption((part,), subject.host_service((part,)), engine=_common_engine(subject))
        for part in subject.own_components
        if (part,) not in alone
    }


def _remaining_options(subject: Subject, option: DeploymentOption) -> tuple[str, ...]:
    """Return options for the components that ``option`` lacks: the smallest that share none with it."""
    names = []
    for part in subject.components:
        if part in option.components:
            continue
        lent = [name for name, each in _borrowed_options(subject).items() if part in each.components]
        names.append((lent or _host_options(subject, part, option.components))[0])
    return tuple(dict.fromkeys(names))


def _host_options(subject: Subject, part: str, without: Sequence[str]) -> list[str]:
    candidates = {**_own_options(subject), **_single_options(subject)}
    fit = [name for name, each in candidates.items() if part in each.components and not {*without} & {*each.components}]
    return sorted(fit, key=lambda name: len(candidates[name].components))


def _borrowed_options(subject: Subject) -> dict[str, DeploymentOption]:
    """Return the other models' options on declared paths, with borrowed components."""
    options = {}
    for name in dict.fromkeys(name for path in subject.paths for name in path if "/" in name):
        owner = name.rpartition("/")[0]
        parts = tuple(part for part in subject.components if subject.shares.get(part) == owner)
        options[name] = DeploymentOption(parts, "", replicas=0, of=name)
    return options


def _declared_prefixes(subject: Subject, name: str) -> Iterator[tuple[str, ...]]:
    """Yield the options on paths that run part of ``name`` earlier."""
    for path in subject.paths:
        if name in path and not any("/" in each for each in path):
            before = path[: path.index(name)]
            earlier_parts = {
                part for each in before if each in subject.options for part in subject.options[each].components
            }
            own_parts = {*subject.options[name].components} if name in subject.options else set()
            if own_parts & earlier_parts and own_parts - earlier_parts:
                yield tuple(each for each in before if own_parts & {*subject.options[each].components})


def _encoder_prefixes(subject: Subject, option: DeploymentOption) -> Iterator[tuple[str, ...]]:
    """Yield encoders that may have run elsewhere, for options with further components."""
    encoders = [
        part for part in subject.encoder_components if part in option.components and part in subject.own_components
    ]
    singles = {**_own_options(subject), **_single_options(subject)}
    alone = {each.components[0]: name for name, each in reversed(singles.items()) if len(each.components) == 1}
    for count in range(1, len(encoders) + 1):
        for parts in combinations(encoders, count):
            if len(parts) < len(option.components):
                yield tuple(alone[part] for part in parts)
