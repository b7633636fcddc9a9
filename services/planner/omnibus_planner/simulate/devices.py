"""Times of a model's components, for the virtual devices of all options."""

from collections.abc import Mapping
from typing import NamedTuple

from omnibus.bus.messages import BatchCounts
from omnibus.executor.sim.distributions import Curve
from omnibus.executor.sim.profile import Profile
from omnibus.executor.sim.request import ComponentLoad
from omnibus.executor.sim.speech import SimulatedTalker
from omnibus_planner.simulate.loads import component_loads

#: Kinds of components that run a step for each token: their utilisation does not show how much they did. Talkers have
#: steps as well, but profiles do not always contain the number of codes in a second of speech.
LANGUAGE_KINDS = ("think", "prefill", "decode")


class ModelDevices(NamedTuple):
    """Devices of one model.

    ``components`` are in the order in which data flows. ``kinds`` are those of their unit tasks. ``encoders`` are
    components by modality. ``times`` contains the times of each option. Talkers send codes in messages of ``chunk``.
    ``overhead`` is the seconds of each request before its components, in gateways and on the bus.
    """

    components: tuple[str, ...]
    kinds: Mapping[str, str]
    encoders: Mapping[str, str]
    times: Profile
    codes_per_second: float
    chunk: int
    overhead: float = 0.0

    def role_loads(self, role: frozenset[str], sizes: Mapping[str, float]) -> dict[str, ComponentLoad]:
        """Return the loads of components ``role`` by a request of ``sizes``."""
        parts = [part for part in self.components if part in role]
        return component_loads(parts, self.kinds, self.encoders, sizes, self.codes_per_second, self.chunk)

    def batch_seconds(self, option: str, component: str, counts: BatchCounts) -> float:
        """Return seconds of ``component`` on ``option`` for these passes and steps; 0 if not measured."""
        times = self.times.options.get(option)
        if times is None or component not in times.components:
            return 0.0
        part = times.components[component]
        seconds = _line_seconds(part.batch, counts.passes, 0, counts.tokens)
        seconds += _line_seconds(part.step, counts.steps, counts.rows, 0)
        return seconds * times.alpha * self.times.time_scale


def _line_seconds(curve: Curve | None, batches: int, items: int, tokens: int) -> float:
    """Return the seconds of ``batches`` by a linear curve.

    ``items`` and ``tokens`` are sums over the batches.
    """
    return curve.base * batches + curve.per_item * items + curve.per_token * tokens if curve is not None else 0.0


def simulated_devices(
    components: tuple[str, ...], kinds: Mapping[str, str], encoders: Mapping[str, str], times: Profile
) -> ModelDevices:
    """Return devices of a model whose simulated engines follow ``times``."""
    known = {kinds[part]: times.default.components[part] for part in components if part in times.default.components}
    vocoder, talker = known.get("vocode"), known.get("talk")
    spoken = vocoder.rate / vocoder.samples if vocoder is not None else 0.0
    chunk = talker.chunk if talker is not None else 0
    return ModelDevices(components, kinds, encoders, times, spoken, chunk or SimulatedTalker.chunk)
