"""From profiles of models to devices: curves of components alone, and factors of options.

A profile has two numbers for a component: seconds per request of a full replica, and of one request alone. A batch of n
takes ``base + n x each``; both numbers determine base and each. The seconds to the first token of one request alone
divide those of a language model between the prompt and the steps after it.

The components of an option run on one device, step by step. So the remaining factor (alpha) is the cost of sharing
beyond taking turns.
"""

from collections.abc import Mapping
from hashlib import sha256

import msgspec

from omnibus.errors import BadRequest
from omnibus.executor.sim.profile import Profile, SimComponent, SimOption
from omnibus.profile import ModelProfile, OptionProfile
from omnibus_planner.simulate.curves import build_component, component_samples
from omnibus_planner.simulate.devices import ModelDevices
from omnibus_planner.simulate.option_fit import fit_options
from omnibus_planner.simulate.streams import measure_streams

#: Number of cached calibrations: each takes seconds of processor time, and a planner needs those of its profiles
#: repeatedly.
_KEPT_CALIBRATIONS = 16
_kept: dict[bytes, ModelDevices] = {}  # by digest of their inputs, the oldest first


def calibrate_devices(
    profile: ModelProfile,
    components: tuple[str, ...],
    kinds: Mapping[str, str],
    encoders: Mapping[str, str],
    options: Mapping[str, OptionProfile],
) -> ModelDevices:
    """Return devices of ``options`` that take as long as ``profile`` has measured.

    Raises ``BadRequest`` for a component without measurements.
    """
    key = sha256(msgspec.json.encode((profile, components, kinds, encoders, options))).digest()
    devices = _kept.get(key)
    if devices is None:
        devices = _calibrate(profile, components, kinds, encoders, options)
        while len(_kept) >= _KEPT_CALIBRATIONS:
            del _kept[next(iter(_kept))]
        _kept[key] = devices
    return devices


def forget_calibrations() -> None:
    """Clear the cache of calibrations."""
    _kept.clear()


def _calibrate(
    profile: ModelProfile,
    components: tuple[str, ...],
    kinds: Mapping[str, str],
    encoders: Mapping[str, str],
    options: Mapping[str, OptionProfile],
) -> ModelDevices:
    known = {
        part: list(component_samples(part, profile, options))
        for part in components
        if any(part in option.components for option in options.values())
    }
    lacking = [part for part, samples in known.items() if not samples]
    if lacking:
        raise BadRequest(f"component {lacking[0]} cannot be simulated: its profile has no seconds of it")
    streams = measure_streams(profile, kinds)
    parts = {part: build_component(kinds[part], part, samples, encoders, streams) for part, samples in known.items()}
    times = _times_of(profile, parts, options)
    plain = ModelDevices(
        components, kinds, encoders, times, streams.codes_per_second, streams.codes, profile.overhead_s
    )
    return fit_options(plain, profile, options)


def _times_of(
    profile: ModelProfile, parts: Mapping[str, SimComponent], options: Mapping[str, OptionProfile]
) -> Profile:
    """Return options whose components take as long as alone."""
    found = {
        name: SimOption(name=name, startup=0.0, alpha=1.0, components={part: parts[part] for part in option.components})
        for name, option in options.items()
    }
    whole = SimOption(name="default", startup=0.0, alpha=1.0, components=dict(parts))
    return Profile(name=profile.model, time_scale=1.0, seed=1, jitter=0.0, default=whole, options=found)
