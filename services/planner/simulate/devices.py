"""Times of a model's components in executors: what virtual devices of all its options follow."""

from collections.abc import Mapping
from typing import NamedTuple

from omnibus.bus.messages import BatchCounts
from omnibus.executor.sim.distributions import Curve
from omnibus.executor.sim.profile import Profile
from omnibus.executor.sim.request import ComponentLoad
from omnibus.executor.sim.speech import SimulatedTalker
from services.planner.simulate.loads import component_loads

#: Kinds of components that go on from step to step, one for each token: how long one is busy says little of how much it
#: did. Talkers have steps as well, but profiles need not say how many codes a second of speech has.
LANGUAGE_KINDS = ("think", "prefill", "decode")


class ModelDevices(NamedTuple):
    """Devices of one model. ``components`` are in the order in which data flows, ``kinds`` are those of their unit
    tasks, ``encoders`` components by modality; ``times`` says what each option takes. Talkers send codes in messages of
    ``chunk``. ``overhead`` is seconds of each request before its components: those of gateways and the bus.
    """

    components: tuple[str, ...]
    kinds: Mapping[str, str]
    encoders: Mapping[str, str]
    times: Profile
    codes_per_second: float
    chunk: int
    overhead: float = 0.0

    def role_loads(self, role: frozenset[str], sizes: Mapping[str, float]) -> dict[str, ComponentLoad]:
        """Loads of the components ``role`` by a request of these ``sizes``."""
        parts = [part for part in self.components if part in role]
        return component_loads(parts, self.kinds, self.encoders, sizes, self.codes_per_second, self.chunk)

    def batch_seconds(self, option: str, component: str, counts: BatchCounts) -> float:
        """Seconds that ``component`` takes on ``option`` for these passes and steps; 0 where nobody has measured it."""
        times = self.times.options.get(option)
        if times is None or component not in times.components:
            return 0.0
        part = times.components[component]
        seconds = _line_seconds(part.batch, counts.passes, 0, counts.tokens)
        seconds += _line_seconds(part.step, counts.steps, counts.rows, 0)
        return seconds * times.alpha * self.times.time_scale


def _line_seconds(curve: Curve | None, batches: int, items: int, tokens: int) -> float:
    """Seconds of ``batches`` that have so many items and tokens together, by a curve that is a line."""
    return curve.base * batches + curve.per_item * items + curve.per_token * tokens if curve is not None else 0.0


def simulated_devices(
    components: tuple[str, ...], kinds: Mapping[str, str], encoders: Mapping[str, str], times: Profile
) -> ModelDevices:
    """Devices of a model whose engines are simulated ones that follow ``times``."""
    known = {kinds[part]: times.default.components[part] for part in components if part in times.default.components}
    vocoder, talker = known.get("vocode"), known.get("talk")
    spoken = vocoder.rate / vocoder.samples if vocoder is not None else 0.0
    chunk = talker.chunk if talker is not None else 0
    return ModelDevices(components, kinds, encoders, times, spoken, chunk or SimulatedTalker.chunk)
