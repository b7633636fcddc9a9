"""Results of measuring options, kept until all are measured, and their settings.

Partial results in a file, so that an interrupted run can resume.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from omnibus.errors import BadRequest, Conflict
from omnibus.profile import EdgeProfile, OptionProfile


class MeasureSettings(msgspec.Struct, frozen=True):
    """Settings of the measurements.

    A step lasts ``seconds`` at least and has ``requests`` at least, with ``most`` at a time. Each option of the rest of
    a path has ``others`` replicas, or up to ``most_others`` if it limits the rate. ``gpu`` is the type of GPU of the
    options.
    """

    seconds: float = 5.0
    requests: int = 16
    most: int = 64
    others: int = 1
    gpu: str = "cpu"
    most_others: int = 4


class CostSample(msgspec.Struct, frozen=True):
    """Mean quantities of requests of one type and size, and components' seconds.

    The means are of ``count`` answers to requests of ``role``. ``share`` is the part of the role's requests that have
    this size, or 0 if the workload does not have this size. ``short`` answers have one token.
    """

    kind: str
    quantities: dict[str, float]
    seconds: dict[str, float]
    role: tuple[str, ...] = ()
    share: float = 0.0
    count: int = 0
    short: bool = False


class OptionMeasurement(msgspec.Struct, frozen=True):
    """All measurements of one option.

    ``busy`` is its busy share under full load, or -1 if it reports none. ``quantities`` are those of requests sent one
    at a time. ``kv`` has the bytes of keys and values by component: per token, and the capacity. ``overheads`` are the
    seconds of single requests outside executors, measured if the option ran all their components.
    """

    option: OptionProfile
    edges: tuple[EdgeProfile, ...] = ()
    samples: tuple[CostSample, ...] = ()
    quantities: dict[str, dict[str, float]] = {}
    busy: float = -1.0
    notes: tuple[str, ...] = ()
    kv: dict[str, tuple[float, float]] = {}
    overheads: tuple[float, ...] = ()


class Partial(msgspec.Struct, frozen=True):
    """Finished options ``found``, and the run's settings in words as ``key``."""

    key: dict[str, str]
    found: dict[str, OptionMeasurement] = {}


class PartialProfile:
    """Keeps ``found`` in ``<name>.partial.json`` next to ``out``."""

    def __init__(self, out: Path, key: Mapping[str, str]) -> None:
        self.path = out.with_name(f"{out.name.removesuffix('.json')}.partial.json")
        self._key = dict(key)
        self.found: dict[str, OptionMeasurement] = {}

    def read_existing(self, resume: bool) -> None:
        """Read the file, if there is one.

        Raises ``Conflict`` without ``resume``, or if the file belongs to another run.
        """
        if not self.path.exists():
            return
        if not resume:
            raise Conflict(f"{self.path} exists: continue with --resume, or remove it to start over")
        try:
            partial = msgspec.json.decode(self.path.read_bytes(), type=Partial)
        except (OSError, msgspec.MsgspecError) as error:
            raise BadRequest(f"{self.path} cannot be read ({error}); remove it to start over") from error
        differs = [name for name in self._key if partial.key.get(name) != self._key[name]]
        if differs:
            was = ", ".join(f"{name} {partial.key.get(name, 'unknown')}" for name in differs)
            raise Conflict(f"{self.path} was started with {was}: use the same settings, or remove it to start over")
        # Options that did not start may start now.
        self.found = {
            name: measurement for name, measurement in partial.found.items() if measurement.option.is_measured
        }

    def save_option(self, option: str, measurement: OptionMeasurement) -> None:
        """Write at once. Raises ``BadRequest`` if that fails."""
        self.found[option] = measurement
        write_file(self.path, msgspec.json.format(msgspec.json.encode(Partial(self._key, self.found))))

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def write_file(path: Path, data: bytes) -> None:
    """Replace ``path`` atomically with ``data``. Raises ``BadRequest``."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror}") from error
