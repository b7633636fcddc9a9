"""A directory like Linux's ``/sys/class/powercap``, with counters that a test sets."""

from pathlib import Path

RANGE = 262_143_328_850  # microjoules at which a processor's counter wraps
#: Zones and their names: those of two processors, of parts of them, of the memory and of the whole board.
ZONES = {
    "intel-rapl:0": "package-0",
    "intel-rapl:0:0": "core",
    "intel-rapl:0:1": "dram",
    "intel-rapl:1": "package-1",
    "intel-rapl:2": "psys",
    "intel-rapl-mmio:0": "package-0",
}


class Powercap:
    """The tree at ``root``."""

    def __init__(self, root: Path, zones: dict[str, str] = ZONES) -> None:
        self.root = root
        for zone, name in zones.items():
            (root / zone).mkdir(parents=True)
            (root / zone / "name").write_text(f"{name}\n")
            (root / zone / "max_energy_range_uj").write_text(f"{RANGE}\n")
            self.set_joules(zone, 100.0)
        (root / "intel-rapl").mkdir()  # of the driver, without a counter

    def set_joules(self, zone: str, joules: float) -> None:
        (self.root / zone / "energy_uj").write_text(f"{round(joules * 1e6) % RANGE}\n")

    def joules(self, zone: str) -> float:
        return int((self.root / zone / "energy_uj").read_text()) / 1e6

    def use(self, joules: float, zone: str = "intel-rapl:0") -> None:
        """Add ``joules`` to the counters of ``zone``."""
        self.set_joules(zone, self.joules(zone) + joules)
