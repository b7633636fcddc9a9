"""Factors of options and their components: costs of running together beyond taking turns."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from omnibus.executor.sim.distributions import Curve
from omnibus.executor.sim.profile import Profile, SimComponent, SimOption
from omnibus.profile import ModelProfile, OptionProfile
from omnibus_planner.simulate.devices import ModelDevices
from omnibus_planner.simulate.saturate import RoleRate, saturate_replica, saturated_rate

#: Factors are limited to this and its inverse.
_MAX_ALPHA = 8.0
#: Requests of a simulation that determines a factor.
_CALIBRATION_REQUESTS = 160


class _MeasuredRole(NamedTuple):
    """Seconds of one role of a request type, with share and sizes."""

    role: frozenset[str]
    seconds: float
    share: float
    sizes: Mapping[str, float]


def fit_options(plain: ModelDevices, profile: ModelProfile, options: Mapping[str, OptionProfile]) -> ModelDevices:
    """Add the factors of ``options`` to ``plain``.

    The first factors are those of components in options with several, by their roles from small to large. Then follow
    factors of options, by roles that contain all components that the option can run for a request.
    """
    rows = {name: list(_measured_roles(option, profile)) for name, option in options.items()}
    devices = plain
    for name, option in options.items():
        for role in sorted({row.role for row in rows[name]}, key=len) if len(option.components) > 1 else ():
            devices = _fit_role(devices, name, [row for row in rows[name] if row.role == role], rows[name])
    factors = {
        name: factor
        for name, option in options.items()
        if (factor := _option_factor(devices, name, option, profile, rows[name]))
    }
    for name, option in options.items():
        factors.setdefault(name, _estimated_factor(option, options, factors))
    return _with_options(
        devices, {name: _with_alpha(each, factors[name]) for name, each in devices.times.options.items()}
    )


def scale_options(devices: ModelDevices, factors: Mapping[str, float]) -> ModelDevices:
    """Return ``devices`` with options ``factors`` times as slow, by name.

    Options without a factor are unchanged.
    """
    options = devices.times.options
    changed = {
        name: _with_alpha(options[name], options[name].alpha * factors[name]) for name in options & factors.keys()
    }
    return _with_options(devices, {**options, **changed}) if changed else devices


def _measured_roles(option: OptionProfile, profile: ModelProfile) -> Iterator[_MeasuredRole]:
    for work in option.work:
        for kind, each in profile.types.items():
            if work.type in ("", kind, "+".join(each.components)) and {*work.components} <= {*each.components}:
                yield _MeasuredRole(frozenset(work.components), work.seconds, each.share or 1e-6, each.quantities)


def _fit_role(devices: ModelDevices, name: str, rows: list[_MeasuredRole], every: list[_MeasuredRole]) -> ModelDevices:
    """Scale the new components of a role to the measured seconds.

    They are in no smaller role.
    """
    role = rows[0].role
    fresh = role.difference(*(row.role for row in every if row.role < role))
    if not fresh:
        return devices
    total = sum(row.share for row in rows)
    measured = sum(row.share * row.seconds for row in rows) / total
    found = saturate_replica(
        devices, name, [RoleRate(role, row.share, row.sizes) for row in rows], requests=_CALIBRATION_REQUESTS
    )
    own = sum(found.seconds.get(part, 0.0) for part in fresh)
    if own <= 0:
        return devices
    factor = _bounded(1.0 + (measured - 1.0 / found.rate) / own)
    option = devices.times.options[name]
    parts = {part: _scaled(each, factor) if part in fresh else each for part, each in option.components.items()}
    changed = SimOption(name=name, startup=0.0, alpha=1.0, components=parts)
    return _with_options(devices, {**devices.times.options, name: changed})


def _scaled(part: SimComponent, factor: float) -> SimComponent:
    return msgspec.structs.replace(part, batch=_scaled_curve(part.batch, factor), step=_scaled_curve(part.step, factor))


def _scaled_curve(curve: Curve | None, factor: float) -> Curve | None:
    if curve is None:
        return None
    return Curve(base=curve.base * factor, per_item=curve.per_item * factor, per_token=curve.per_token * factor)


def _with_alpha(option: SimOption, alpha: float) -> SimOption:
    return SimOption(name=option.name, startup=0.0, alpha=alpha, components=option.components)


def _with_options(devices: ModelDevices, options: Mapping[str, SimOption]) -> ModelDevices:
    times = devices.times
    return devices._replace(
        times=Profile(name=times.name, time_scale=1.0, seed=1, jitter=0.0, default=times.default, options=dict(options))
    )


def _option_factor(
    devices: ModelDevices, name: str, option: OptionProfile, profile: ModelProfile, rows: list[_MeasuredRole]
) -> float:
    """Return measured seconds of whole roles, relative to an unscaled device.

    It is 0 if none were measured.
    """
    whole = {frozenset(option.components) & frozenset(each.components) for each in profile.types.values()}
    measured = simulated = 0.0
    for row in rows:
        if row.role in whole:
            measured += row.share * row.seconds
            simulated += row.share / saturated_rate(
                devices, name, [RoleRate(row.role, 1.0, row.sizes)], requests=_CALIBRATION_REQUESTS
            )
    if not measured and option.rate > 0:
        measured, simulated = _mix_seconds(devices, name, option, profile)
    return _bounded(measured / simulated) if simulated > 0 else 0.0


def _bounded(factor: float) -> float:
    return min(_MAX_ALPHA, max(1 / _MAX_ALPHA, factor))


def _mix_seconds(devices: ModelDevices, name: str, option: OptionProfile, profile: ModelProfile) -> tuple[float, float]:
    """Return seconds per request of the mix, as measured and simulated.

    The latter is 0 if no request uses the option.
    """
    roles = [
        RoleRate(role, kind.share, kind.quantities)
        for kind in profile.types.values()
        if (role := frozenset(option.components) & frozenset(kind.components))
    ]
    using = sum(role.rate for role in roles)
    rate = saturated_rate(devices, name, roles, requests=_CALIBRATION_REQUESTS) if using > 0 else 0.0
    return 1.0 / option.rate, using / rate if rate > 0 else 0.0


def _estimated_factor(
    option: OptionProfile, options: Mapping[str, OptionProfile], factors: Mapping[str, float]
) -> float:
    """Estimate the factor of an unmeasured option: the largest of its parts, at least 1.

    Only parts with several components count.
    """
    within = [
        factor
        for name, factor in factors.items()
        if len(options[name].components) > 1 and set(options[name].components) <= set(option.components)
    ]
    return max([1.0, *within])
