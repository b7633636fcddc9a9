"""One declared model: completed from its family, and checked alone."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeVar

import msgspec

from omnibus.bus.subjects import subject_token, task_name
from omnibus.checkpoints import find_checkpoint
from omnibus.checkpoints.precheck import read_modalities
from omnibus.errors import BadRequest, OmnibusError
from omnibus.families import catalog
from omnibus.families.specs import KNOWN
from omnibus.model_defaults import ImageDefaults, SamplingDefaults
from omnibus.plan import LANGUAGE_COMPONENTS, DeploymentOption, ModelPlan, Path
from omnibus_planner.declared import planned_spec

#: Services that run executors.
SERVICES = ("encoder", "llm", "generator")
#: Components that a request uses only for a spoken answer.
SPEECH = ("talker", "vocoder", "audio_vae")

#: Detectors of turns in the audio of a model's users.
SPEECH_DETECTORS = ("energy", "silero")
#: Most cells of one model that is not planned.
MAX_CELLS = 64

T = TypeVar("T")


class DeclaredPath(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options that together run the model, and their share of the requests."""

    options: tuple[str, ...]
    share: float = 1.0


class DeclaredModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model: its components in the order in which data flows, its options and its paths.

    ``tasks`` maps a component to the kind of its unit task; ``shares`` maps one to its lending model. None means the
    family's value. A ``planned`` model has no options or paths. ``adapters`` are LoRA adapters of its language model:
    their names in requests, and directories or ids of the hub. Executors of an encoder serve all models with an equal
    one, unless ``share_equal`` is false.

    ``cells`` above 0 is the number of equal cells, each of which has all options and serves whole requests alone.
    ``speech_detector``, of ``SPEECH_DETECTORS``, is for a model whose users do not speak words; empty means the
    gateway's default. ``sampling_defaults`` complete requests for text.
    """

    family: str
    checkpoint: str
    components: tuple[str, ...] | None = None
    encoders: dict[str, str] | None = None
    tasks: dict[str, str] | None = None
    options: dict[str, DeploymentOption] | None = None
    paths: tuple[DeclaredPath, ...] | None = None
    voices: tuple[str, ...] | None = None
    context: int = 0
    shares: dict[str, str] = {}
    planned: planned_spec.PlannedModel | None = None
    image_defaults: ImageDefaults = ImageDefaults()
    adapters: dict[str, str] = {}
    share_equal: bool = True
    cells: int = 0
    speech_detector: str = ""
    sampling_defaults: SamplingDefaults = SamplingDefaults()


def find_encoders(family: str, checkpoint: str, encoders: Mapping[str, str]) -> Mapping[str, str]:
    """Return the part of a family's ``encoders``, by modality, that its model with ``checkpoint`` has.

    If the checkpoint decides but is not on this machine, these are all.
    """
    if family not in KNOWN or not KNOWN[family].modalities_by_checkpoint:
        return encoders
    try:
        modalities = read_modalities(find_checkpoint(checkpoint))
    except OmnibusError:
        return encoders
    return {modality: part for modality, part in encoders.items() if modality in modalities}


class Model:
    """A declared model, completed from its family and checked alone."""

    def __init__(self, name: str, declaration: DeclaredModel) -> None:
        self.name = name
        try:
            family = catalog.find_family(declaration.family)
        except BadRequest as error:
            raise BadRequest(f"model {name}: {error.message}") from error
        self.engine = str(family["engine"])
        self.declared = declaration
        self.components = _value_or(declaration.components, tuple(family["components"]))
        component_names = set(self.components)
        encoders = find_encoders(declaration.family, declaration.checkpoint, family["encoders"])
        self.encoders = _value_or(
            declaration.encoders, {key: part for key, part in encoders.items() if part in component_names}
        )
        self.kinds = {
            **{part: kind for part, kind in family["tasks"].items() if part in component_names},
            **(declaration.tasks or {}),
        }
        self.voices = _value_or(declaration.voices, tuple(family["voices"]))
        self.shares = declaration.shares
        #: Undeclared ``shares``: both models have the same component.
        self.equal_shares: dict[str, str] = {}
        self.planned = declaration.planned
        #: The family's own options, whose services a planned model uses.
        self.usual = _convert_family_field(declaration.family, family["options"], dict[str, DeploymentOption])
        self.paths: tuple[DeclaredPath, ...] = ()
        self.options: dict[str, DeploymentOption] = {}
        _check_components(self)
        _check_adapters(self)
        _check_cells(self)
        if self.planned is None:
            self.paths = _value_or(
                declaration.paths, _convert_family_field(declaration.family, family["paths"], tuple[DeclaredPath, ...])
            )
            self.options = _value_or(declaration.options, self._family_options())
            _check_deployment(self)
        else:
            _check_planned(self, self.planned)

    def _family_options(self) -> dict[str, DeploymentOption]:
        """Return the family's options that are on a path: others would run idle."""
        path_options = {option for path in self.paths for option in path.options}
        return {name: option for name, option in self.usual.items() if name in path_options}

    def build_plan(self, options: dict[str, DeploymentOption], types: dict[str, tuple[Path, ...]]) -> ModelPlan:
        """Return the model deployed as ``options``, with paths by request type."""
        planned = self.planned.goals if self.planned is not None else planned_spec.TailLatencyGoals()
        goals = planned.of_model()
        return ModelPlan(
            family=self.declared.family,
            checkpoint=self.declared.checkpoint,
            components=self.components,
            encoders=self.encoders,
            options=options,
            types=types,
            voices=self.voices,
            context=self.declared.context,
            tasks={component: self.unit_task_name(component) for component in self.components},
            ttft=goals.tightest("first_token"),
            tbt=goals.tightest("token"),
            image_defaults=self.declared.image_defaults,
            goals=dict(goals.usual),
            adapters=self.declared.adapters,
            speech_detector=self.declared.speech_detector or msgspec.UNSET,
            sampling_defaults=self._declared_sampling() or msgspec.UNSET,
            type_goals={parts: dict(each) for parts, each in goals.types.items()} or msgspec.UNSET,
        )

    def _declared_sampling(self) -> SamplingDefaults | None:
        """Return the declared sampling, if there is any: an earlier build rejects the field."""
        defaults = self.declared.sampling_defaults
        return None if defaults == SamplingDefaults() else defaults

    def unit_task_name(self, component: str) -> str:
        """Return the name of the unit task of ``component``, maybe another model's."""
        return task_name(self.kinds[component], self.shares.get(component, self.name), component)

    def option_name(self, components: Sequence[str]) -> str:
        """Return the name of an option with ``components`` that has no name yet."""
        return "-".join(components)

    def request_types(self) -> Iterator[frozenset[str]]:
        """Yield all sets of components that a request may use.

        A set has any encoders, the required components, and speech or not. A request to a model that both chats and
        generates images uses one side alone.
        """
        for way in catalog.component_chains(self.components, self.kinds):
            encoders = sorted(self.optional_components() & {*way})
            always = [component for component in self.required_components() if component in way]
            speech = [component for component in way if component in SPEECH]
            for count in range(len(encoders) + 1):
                for chosen_encoders in combinations(encoders, count):
                    yield frozenset([*chosen_encoders, *always])
                    if speech:
                        yield frozenset([*chosen_encoders, *always, *speech])

    def optional_components(self) -> set[str]:
        """Return components that a request uses only with media for them: encoders, also of first frames."""
        frames = {part for part in self.components if self.kinds.get(part) == "encode-frame"}
        return {*self.encoders.values(), *frames}

    def required_components(self) -> list[str]:
        """Return the components that every request uses, such as the thinker; see ``types``."""
        return [part for part in self.components if part not in {*SPEECH, *self.optional_components()}]


def _value_or(value: T | None, usual: T) -> T:
    return usual if value is None else value


def _convert_family_field(family: str, value: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the family {family} has an invalid deployment: {error}") from error


def _check_components(model: Model) -> None:
    component_names = set(model.components)
    require_valid_model(
        len(component_names) == len(model.components),
        model.name,
        f"names a component twice: {', '.join(model.components)}",
    )
    for component in model.components:
        require_valid_model(
            subject_token(component) == component,
            model.name,
            f"component {component!r} must consist of letters, digits, - and _",
        )
        kind = model.kinds.get(component, "")
        require_valid_model(
            subject_token(kind) == kind,
            model.name,
            f"component {component} needs a kind of unit task of letters, digits, - and _: add it to 'tasks'",
        )
    for name, value in msgspec.structs.asdict(model.declared.image_defaults).items():
        require_valid_model(value is None or value >= 0, model.name, f"image_defaults has {name} {value}")
    for modality, component in model.encoders.items():
        require_valid_model(
            component in component_names,
            model.name,
            f"encoder of {modality} is {component!r}, which is not a component",
        )
    detector = model.declared.speech_detector
    require_valid_model(
        detector in ("", *SPEECH_DETECTORS),
        model.name,
        f"speech_detector {detector!r} is unknown: it must be {' or '.join(SPEECH_DETECTORS)}",
    )
    strange = sorted(set(model.kinds) - component_names)
    require_valid_model(not strange, model.name, f"tasks name {strange}, which are not components")
    require_valid_model(
        bool(model.required_components()), model.name, "has nothing that every request uses, such as a thinker"
    )


def _check_adapters(model: Model) -> None:
    adapters = model.declared.adapters
    if not adapters:
        return
    own = LANGUAGE_COMPONENTS & set(model.components)
    require_valid_model(bool(own), model.name, "has adapters, but no language model for them")
    for component in sorted(own & model.shares.keys()):
        require_valid_model(
            False,
            model.name,
            f"has adapters of {component}, which is {model.shares[component]}'s: declare them there",
        )
    for name, checkpoint in adapters.items():
        require_valid_model(bool(name.strip()), model.name, "has an adapter without a name")
        require_valid_model(bool(checkpoint), model.name, f"adapter {name} has no directory and no id of the hub")


def _check_cells(model: Model) -> None:
    cells = model.declared.cells
    require_valid_model(0 <= cells <= MAX_CELLS, model.name, f"has {cells} cells: it must have 0 to {MAX_CELLS}")
    require_valid_model(
        not cells or model.planned is None, model.name, "is planned: its 'cells' are those of 'planned'"
    )
    require_valid_model(not cells or not model.shares, model.name, "has cells, which share nothing: leave 'shares' out")


def _check_planned(model: Model, planned_model: planned_spec.PlannedModel) -> None:
    for field in ("options", "paths"):
        is_declared = getattr(model.declared, field) is not None
        require_valid_model(
            not is_declared, model.name, f"is planned, so it cannot have {field!r}: leave one of them out"
        )
    planned_spec.check_planned_model(model.name, planned_model)
    for parts in planned_model.goals.types:
        require_valid_model(
            set(parts.split("+")) <= set(model.components), model.name,
            f"planned goals.types names {parts!r}: give components, joined by '+', of {', '.join(model.components)}",
        )  # fmt: skip


def _check_deployment(model: Model) -> None:
    for name, option in model.options.items():
        _check_option(model, name, option)
    _check_paths(model)


def _check_option(model: Model, name: str, option: DeploymentOption) -> None:
    def require_valid(good: bool, fault: str) -> None:
        require_valid_model(good, model.name, f"option {name} {fault}")

    require_valid(bool(name) and not {*"/>,"} & {*name}, "has a name with '/', '>' or ','")
    require_valid(set(option.components) <= set(model.components), f"has unknown components {option.components}")
    require_valid(bool(option.components), "has no component")
    require_valid(option.service in SERVICES, f"has service {option.service!r}; there is {', '.join(SERVICES)}")
    require_valid(option.replicas >= 0, f"has {option.replicas} replicas")
    require_valid(not option.cell, "has 'cell', which only plans have: give the model 'cells'")
    require_valid(not option.of, "has 'of', which only plans have: name the other model's option in a path")
    require_valid(
        not option.engine or ":" in option.engine, f"has engine {option.engine!r}: it must name module:function"
    )
    stages = (option.vllm or {}).get("pipeline_parallel", 1)
    require_valid(
        isinstance(stages, int) and stages >= 1, f"has pipeline_parallel {stages!r}: it must be a whole number above 0"
    )
    require_valid(
        not option.gpus % int(stages),
        f"has {option.gpus} GPUs for a pipeline of {stages}: 'gpus' must be a multiple of it, the degree of tensor "
        "parallelism times pipeline_parallel",
    )


def _check_paths(model: Model) -> None:
    require_valid_model(bool(model.paths), model.name, "declares no path")
    for path in model.paths:
        require_valid_model(path.share >= 0, model.name, f"path {path.options} has a negative share")
        unknown = [option for option in path.options if "/" not in option and option not in model.options]
        require_valid_model(not unknown, model.name, f"path {path.options} uses undeclared options {unknown}")
    require_valid_model(sum(path.share for path in model.paths) > 0, model.name, "all paths have share 0")


def require_valid_model(good: bool, model: str, fault: str) -> None:
    if not good:
        raise BadRequest(f"model {model}: {fault}")
