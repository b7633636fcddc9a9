"""Default sampling of requests: from the model's declaration, else from its checkpoint.

Executors report the ``generation_config.json`` of their checkpoint, wherever it is stored, in their status events.
"""

from collections.abc import Mapping

import msgspec
from msgspec import UNSET

from omnibus.bus.messages import ExecutorStatus
from omnibus.plan import ModelPlan, Plan
from omnibus_gateway.routing.executors import ExecutorTable

#: The default temperature of vLLM and of OpenAI's API.
NEUTRAL_TEMPERATURE = 1.0
#: The parameter that gives executors the default for checkpoints without one.
FALLBACK = "fallback_temperature"


class ModelSampling(msgspec.Struct, frozen=True):
    """Sampling of one model. If ``complete``, no executor can add to ``values``."""

    values: Mapping[str, float] = {}
    complete: bool = True


NEUTRAL = ModelSampling()
_UNKNOWN = ModelSampling(complete=False)


class DefaultSampling:
    """Sampling of the plan's models as ``members`` report it; cached until they change."""

    def __init__(self, members: ExecutorTable) -> None:
        self._members = members
        self._plan: Plan | None = None
        self._version = -1
        self._known: dict[str, ModelSampling] = {}

    def use_plan(self, plan: Plan | None) -> None:
        self._plan = plan
        self._known = {}

    def of_model(self, name: str) -> ModelSampling:
        """Return the sampling of the plan's model ``name``; neutral for an unknown one."""
        if self._members.version != self._version:
            self._version = self._members.version
            self._known = {}
        sampling = self._known.get(name)
        if sampling is None:
            model = None if self._plan is None else self._plan.models.get(name)
            sampling = self._known[name] = NEUTRAL if model is None else self._read_model(name, model)
        return sampling

    @property
    def unknown(self) -> ModelSampling:
        """Sampling of an app's chat, which is unknown: the models that it calls complete it."""
        return _UNKNOWN if self._members.all_take(FALLBACK) else NEUTRAL

    def _read_model(self, name: str, model: ModelPlan) -> ModelSampling:
        declared_defaults = None if model.sampling_defaults is UNSET else model.sampling_defaults
        declared_values = {} if declared_defaults is None else declared_defaults.values()
        if declared_defaults is not None and not declared_defaults.checkpoint:
            return ModelSampling(declared_values)
        parts = {(name, option) for option, spec in model.options.items() if not spec.of}
        lent = {(owner, option) for owner, _, option in (spec.of.partition("/") for spec in model.options.values())}
        executors = [each for each in self._members.statuses() if (each.model, each.option) in parts | lent]
        values = {key: value for each in executors for key, value in (each.sampling or {}).items()}
        complete = any(map(_chooses_text, executors)) or not self._members.all_take(FALLBACK)
        return ModelSampling({**values, **declared_values}, complete)


def _chooses_text(status: ExecutorStatus) -> bool:
    return any(component != "talker" for component in status.components)
