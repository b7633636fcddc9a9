"""Partial results in a file, so that an interrupted run can resume."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from omnibus.errors import BadRequest, Conflict
from omnibus.profiling.measurements import OptionMeasurement


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
