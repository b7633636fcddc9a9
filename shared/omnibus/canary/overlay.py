"""Plan of a model with a candidate added, promoted or removed."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from omnibus.canary.candidate import Candidate, OptionChange
from omnibus.plan import CANDIDATE_MARK, DeploymentOption, ModelPlan, Path


def overlay_models(models: Mapping[str, ModelPlan], candidates: Iterable[Candidate]) -> dict[str, ModelPlan]:
    """Return ``models`` with the changes of ``candidates``. A candidate that does not fit its model changes nothing."""
    result = dict(models)
    for candidate in candidates:
        if candidate.model in result:
            result[candidate.model] = overlay_model(result[candidate.model], candidate)
    return result


def overlay_model(model: ModelPlan, candidate: Candidate) -> ModelPlan:
    """Return ``model`` with earlier promoted changes and with ``candidate`` in its state.

    Changes of options that no longer exist have no effect.
    """
    model = _promote(model, candidate.base, candidate.base_path)
    if candidate.state == "promoted":
        return _promote(model, candidate.changes, candidate.path)
    return _add_beside(model, candidate) if candidate.is_active else model


def without_candidate(model: ModelPlan) -> ModelPlan:
    """Return ``model`` without the options and paths of a candidate."""
    if not any(is_candidate_option(name) for name in model.options):
        return model
    options = {name: option for name, option in model.options.items() if not is_candidate_option(name)}
    types = {kind: tuple(path for path in paths if not path.is_candidate) for kind, paths in model.types.items()}
    return msgspec.structs.replace(model, options=options, types=types)


def is_candidate_option(name: str) -> bool:
    return name.endswith(CANDIDATE_MARK)


def find_control(paths: Iterable[Path], candidate_path: Path, candidate: Candidate) -> Path | None:
    """Return the path of ``paths`` to compare with ``candidate_path`` of ``candidate``.

    It has the same options without the mark. If the candidate is another path, or there is no such path, it is compared
    with the busiest one.
    """
    plain_paths = [path for path in paths if not path.is_candidate]
    plain = {part: option.removesuffix(CANDIDATE_MARK) for part, option in candidate_path.options.items()}
    same = next((path for path in plain_paths if path.options == plain), None) if not candidate.path else None
    return same or max(plain_paths, key=lambda path: path.rate, default=None)


def _promote(model: ModelPlan, changes: Iterable[OptionChange], through: tuple[str, ...]) -> ModelPlan:
    by_option = {change.option: change for change in changes}
    options = {
        name: by_option[name].apply(option) if name in by_option else option for name, option in model.options.items()
    }
    types = model.types
    if through and set(through) <= options.keys():
        types = {kind: _whole_path(model, through, paths) for kind, paths in types.items()}
    return msgspec.structs.replace(model, options=options, types=types)


def _whole_path(model: ModelPlan, through: tuple[str, ...], paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return paths that send all requests ``through`` these options. The others are used if one of the options has no
    executor."""
    options = _path_options(model, through, paths[0].options)
    best = _build_path(options, 1.0)
    return (best, *(msgspec.structs.replace(path, rate=0.0) for path in paths if path.options != options))


def _add_beside(model: ModelPlan, candidate: Candidate) -> ModelPlan:
    if not {*candidate.path, *(change.option for change in candidate.changes)} <= model.options.keys():
        return model
    new_options = dict(_candidate_options(model, candidate))
    candidate_names = {name.removesuffix(CANDIDATE_MARK): name for name in new_options}
    share = candidate.share if candidate.state == "canary" else 0.0
    types = {
        kind: (*paths, *_candidate_paths(model, candidate, paths, candidate_names, share))
        for kind, paths in model.types.items()
    }
    return msgspec.structs.replace(model, options={**model.options, **new_options}, types=types)


def _candidate_options(model: ModelPlan, candidate: Candidate) -> Iterator[tuple[str, DeploymentOption]]:
    for change in candidate.changes:
        option = change.apply(model.options[change.option])
        yield change.option + CANDIDATE_MARK, msgspec.structs.replace(option, replicas=candidate.replicas)
    for name in dict.fromkeys(candidate.path):
        option = model.options[name]
        yield (
            name + CANDIDATE_MARK,
            msgspec.structs.replace(option, replicas=candidate.replicas if not option.of else 0),
        )


def _candidate_paths(
    model: ModelPlan, candidate: Candidate, paths: tuple[Path, ...], candidate_names: Mapping[str, str], share: float
) -> Iterator[Path]:
    """Yield the candidate's path for a request type. There is none if the candidate does not change ``paths``."""
    total = sum(path.rate for path in paths)
    rate = share / (1.0 - share) * total
    if candidate.path:
        options = _path_options(model, candidate.path, paths[0].options if paths else {})
        yield _build_path({part: candidate_names[option] for part, option in options.items()}, rate)
        return
    affected_paths = [path for path in paths if not candidate_names.keys().isdisjoint(path.options.values())]
    if affected_paths:
        busiest = max(affected_paths, key=lambda path: path.rate)
        yield _build_path({part: candidate_names.get(option, option) for part, option in busiest.options.items()}, rate)


def _path_options(model: ModelPlan, through: tuple[str, ...], parts: Iterable[str]) -> dict[str, str]:
    """Return the first option of ``through`` that runs each part."""
    return {part: next(name for name in through if part in model.options[name].components) for part in parts}


def _build_path(options: dict[str, str], rate: float) -> Path:
    return Path(">".join(dict.fromkeys(options.values())), options, rate)
