"""Equal encoders of several models: executors of one model serve them all automatically.

Of the models with one identity (``omnibus.checkpoints.identity``) one lends. It is one that a declaration names as a
lender, else the first that deploys the encoder in separate executors. The others send their work to it.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from omnibus.checkpoints import hub
from omnibus.checkpoints.identity import ComponentIdentity, read_identity
from omnibus.errors import OmnibusError
from omnibus.families.specs import KNOWN
from omnibus.plan import DeploymentOption
from omnibus_planner.declared.model import Model

log = logging.getLogger(__name__)

#: The kind of unit task of encoders, whose outputs depend only on weights, settings and media.
_ENCODE = "encode"


def component_identity(model: Model, component: str) -> ComponentIdentity | None:
    """Return the identity of a component of ``model``.

    It is None if its checkpoint is not on this machine, or its family is not built in.
    """
    known_family = KNOWN.get(model.declared.family)
    if known_family is None:
        return None
    try:
        directory = hub.resolve_checkpoint(model.declared.checkpoint)
    except OmnibusError:  # an id that was not downloaded here
        return None
    encodes = model.kinds[component] == _ENCODE
    return read_identity(directory, model.declared.family, component, known_family.weights, encodes)


def share_equal_components(models: Mapping[str, Model]) -> None:
    """Let models with equal encoders share executors.

    This changes ``shares``, ``options`` and ``paths`` of models. Declared shares stay as they are, and a model with
    ``"share_equal": false`` does not share.
    """
    lenders = {owner for model in models.values() for owner in model.declared.shares.values()}
    borrowed_parts: dict[str, dict[str, str]] = {}
    for component, group in _equal_components(models):
        owner = _choose_lender(group, component, lenders)
        for model in group if owner is not None else ():
            if model is not owner and model.name not in lenders and owner is not None:
                borrowed_parts.setdefault(model.name, {})[component] = owner.name
    for name, shares in borrowed_parts.items():
        _borrow(models[name], shares, models)


def _equal_components(models: Mapping[str, Model]) -> Iterator[tuple[str, list[Model]]]:
    """Yield encoders that several models have, and these models. Bytes are read only if all else is equal."""
    outlines: dict[tuple[object, ...], list[tuple[Model, ComponentIdentity]]] = {}
    for model in models.values() if len(models) > 1 else ():
        for component in model.components if model.declared.share_equal and not model.declared.cells else ():
            if model.kinds[component] != _ENCODE or component in model.declared.shares:
                continue
            identity = component_identity(model, component)
            if identity is not None:
                key = component, _planning_group(model), identity.outline
                outlines.setdefault(key, []).append((model, identity))
    for (component, *_), identities in outlines.items():
        for group in _group_by_content(identities):
            yield str(component), group


def _planning_group(model: Model) -> object:
    """Return a key of models that may share: static ones, or those planned together."""
    planned_model = model.planned
    if planned_model is None:
        return ""
    return model.name if planned_model.cells or planned_model.policy else planned_model.goal


def _group_by_content(identities: Sequence[tuple[Model, ComponentIdentity]]) -> Iterator[list[Model]]:
    groups: dict[str, list[Model]] = {}
    for model, identity in identities if len(identities) > 1 else ():
        try:
            groups.setdefault(identity.digest, []).append(model)
        except OSError as error:  # loading it reports the fault
            log.warning("the weights of %s cannot be compared: %s", model.name, error)
    yield from (group for group in groups.values() if len(group) > 1)


def _choose_lender(group: Sequence[Model], component: str, lenders: set[str]) -> Model | None:
    lender = next((model for model in group if model.name in lenders), None)
    if lender is not None or group[0].planned is not None:
        return lender or group[0]
    return next((model for model in group if _encoder_options(model, {component})), None)


def _encoder_options(model: Model, components: set[str]) -> dict[str, DeploymentOption]:
    """Return the options on paths of ``model`` that run only ``components``.

    They use the model's checkpoint.
    """
    used_options = {name for path in model.paths for name in path.options}
    return {
        name: option
        for name, option in model.options.items()
        if name in used_options and set(option.components) <= components and not option.checkpoint
    }


def _borrow(model: Model, shares: Mapping[str, str], models: Mapping[str, Model]) -> None:
    if model.planned is not None:
        model.equal_shares = dict(shares)
        model.shares = {**model.shares, **shares}
    else:
        new_names = dict(_lent_options(model, shares, models))
        served_parts = {part for name in new_names for part in model.options[name].components}
        model.equal_shares = {part: owner for part, owner in shares.items() if part in served_parts}
        model.shares = {**model.shares, **model.equal_shares}
        model.paths = tuple(
            msgspec.structs.replace(path, options=tuple(new_names.get(name, name) for name in path.options))
            for path in model.paths
        )
        model.options = {name: option for name, option in model.options.items() if name not in new_names}
    for part, owner in model.equal_shares.items():
        log.info("%s and %s have the same %s: executors of %s serve both", owner, model.name, part, owner)


def _lent_options(model: Model, shares: Mapping[str, str], models: Mapping[str, Model]) -> Iterator[tuple[str, str]]:
    """Yield options of ``model`` with equal ones of another model.

    The other option gets as many executors.
    """
    for name, option in _encoder_options(model, set(shares)).items():
        owners = {shares[part] for part in option.components}
        owner = models[next(iter(owners))]
        for lent, other in _encoder_options(owner, set(option.components)).items() if len(owners) == 1 else ():
            count = max(option.replicas, other.replicas)
            if msgspec.structs.replace(option, replicas=0) == msgspec.structs.replace(other, replicas=0):
                owner.options = {**owner.options, lent: msgspec.structs.replace(other, replicas=count)}
                yield name, f"{owner.name}/{lent}"
                break
