"""The measured model: its declaration and the properties of its family."""

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from omnibus.errors import BadRequest
from omnibus.families import catalog
from omnibus.plan import DeploymentOption, request_type

#: Components that a request uses only if its answer has audio.
SPEECH = ("talker", "vocoder")
#: Services that may host a set of components: the first that is the usual service of any of them.
SERVICES = ("llm", "generator", "encoder")


class Subject(msgspec.Struct, frozen=True):
    """A model and its declaration.

    ``options`` are those that its deployment has, ``paths`` the ways through it. ``declared`` is its entry in the
    declarations file, and ``others`` has the entries of models whose components it shares.
    """

    name: str
    family: str
    checkpoint: str
    components: tuple[str, ...]
    encoders: dict[str, str]
    options: dict[str, DeploymentOption]
    paths: tuple[tuple[str, ...], ...]
    shares: dict[str, str]
    declared: dict[str, Any]
    others: dict[str, dict[str, Any]]

    @property
    def own_components(self) -> tuple[str, ...]:
        """Components that the model's own executors run."""
        return tuple(part for part in self.components if part not in self.shares)

    @property
    def encoder_components(self) -> tuple[str, ...]:
        """Components that read media."""
        return tuple(part for part in self.components if part in self.encoders.values())

    @property
    def required_components(self) -> tuple[str, ...]:
        """Components that every request uses."""
        return tuple(part for part in self.components if part not in self.encoder_components and part not in SPEECH)

    @property
    def order(self) -> tuple[tuple[str, str], ...]:
        """Pairs of a component and its direct successor: encoders in parallel, then a chain."""
        chain = [part for part in self.components if part not in self.encoder_components]
        first = [(encoder, chain[0]) for encoder in self.encoder_components] if chain else []
        return (*first, *pairwise(chain))

    def used_components(self, modalities: Collection[str], speaks: bool) -> frozenset[str]:
        """Return the components that a request with these media uses.

        Raises ``BadRequest`` for media that the model lacks.
        """
        for modality in sorted(modalities):
            if modality not in self.encoders:
                raise BadRequest(f"{self.name} does not take {modality}: leave it out")
        speech = [part for part in SPEECH if part in self.components]
        if speaks and not speech:
            raise BadRequest(f"{self.name} has no audio output: leave modalities out")
        return frozenset(
            [*self.required_components, *(self.encoders[each] for each in modalities), *(speech if speaks else ())]
        )

    def in_flow_order(self, parts: Collection[str]) -> tuple[str, ...]:
        """Return ``parts`` in the order of data flow."""
        return tuple(part for part in self.components if part in parts)

    def type_name(self, used_components: Collection[str]) -> str:
        """Return the name of the request type that uses ``used_components``."""
        return request_type(self.components, used_components)  # type: ignore[arg-type]

    def host_service(self, parts: Collection[str]) -> str:
        """Return the service that hosts ``parts`` together."""
        usual = {self._usual_service(part) for part in parts}
        return next(service for service in SERVICES if service in usual)

    def _usual_service(self, part: str) -> str:
        family = catalog.find_family(self.family)["options"]
        options = [*self.options.values(), *msgspec.convert(family, dict[str, DeploymentOption]).values()]
        hosts = [option for option in options if part in option.components]
        return min(hosts, key=lambda option: len(option.components)).service if hosts else "llm"


def find_subject(name: str, declarations: str) -> Subject:
    """Return the model ``name`` of the declarations. Raises ``BadRequest`` if either is invalid."""
    models = _parse_models(declarations)
    if name not in models:
        raise BadRequest(f"no model {name!r} is declared; there is {', '.join(sorted(models)) or 'none'}")
    entry = _without_planned(models[name])
    try:
        family = catalog.find_family(str(entry.get("family", "")))
        return _make_subject(name, entry, models, family)
    except (msgspec.ValidationError, TypeError, AttributeError) as error:
        raise BadRequest(f"the declaration of {name} cannot be read: {error}") from error


def chat_components(name: str, components: Sequence[str], tasks: Mapping[str, str]) -> tuple[str, ...]:
    """Return those of ``components`` that answer chats: a workload consists of chats.

    ``tasks`` has the kind of task by component. Raises ``BadRequest`` if none answers chats.
    """
    [chat, *_] = catalog.component_chains(components, tasks)
    if catalog.CHATTING.isdisjoint(tasks.get(part) for part in chat):
        raise BadRequest(
            f"{name} does not chat, and only chats can be measured. It has {', '.join(components)}. Choose a model "
            "with a language model that answers"
        )
    return tuple(chat)


def model_names(declarations: str) -> tuple[str, ...]:
    """Return all declared models. Raises ``BadRequest``."""
    return tuple(_parse_models(declarations))


def _make_subject(name: str, entry: dict[str, Any], models: Mapping[str, Any], family: Mapping[str, Any]) -> Subject:
    whole = msgspec.convert(entry.get("components") or list(family["components"]), tuple[str, ...])
    components = chat_components(name, whole, family["tasks"])
    encoders = {key: part for key, part in family["encoders"].items() if part in components}
    options = msgspec.convert(entry.get("options") or family["options"], dict[str, DeploymentOption])
    if components != whole:  # it generates images as well
        tasks = {part: kind for part, kind in (entry.get("tasks") or {}).items() if part in components}
        entry = {**entry, "components": list(components), "tasks": tasks}
    other = {key for key, option in options.items() if {*option.components} & ({*whole} - {*components})}
    chains = [tuple(each["options"]) for each in entry.get("paths") or family["paths"]]
    paths = dict.fromkeys(tuple(each for each in chain if each not in other) for chain in chains)
    shares = msgspec.convert(entry.get("shares") or {}, dict[str, str])
    return Subject(
        name=name,
        family=entry["family"],
        checkpoint=str(entry.get("checkpoint", "")),
        components=components,
        encoders=msgspec.convert(entry.get("encoders") or encoders, dict[str, str]),
        options={key: option for key, option in options.items() if key not in other},
        paths=msgspec.convert(list(paths), tuple[tuple[str, ...], ...]),
        shares=shares,
        declared=entry,
        others={other: _without_planned(models[other]) for other in shares.values() if other in models},
    )


def _parse_models(declarations: str) -> dict[str, Any]:
    try:
        models = json.loads(declarations)["models"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadRequest(f"the declarations cannot be read: they must be JSON with `models` ({error})") from error
    if not isinstance(models, dict):
        raise BadRequest("the declarations cannot be read: `models` must be an object")
    return models


def _without_planned(entry: Any) -> dict[str, Any]:
    """Return ``entry`` without the planner's settings: the profiler deploys each option itself."""
    if not isinstance(entry, dict):
        raise BadRequest("the declarations cannot be read: each of `models` must be an object")
    return {key: value for key, value in entry.items() if key != "planned"}
