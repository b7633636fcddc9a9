"""Energy: reading Linux's meters, and each job's share of the energy."""

import asyncio
import os
from pathlib import Path

import pytest

from omnibus.bus.messages import Hop
from omnibus.executor import energy_meters as energy_bill
from omnibus.executor.energy_meters import EnergyBill, RaplMeter, find_zones, open_meter, visible_gpus
from omnibus.metrics import render_exposition
from tests.unit.executor.arithmetic import Place, put_number
from tests.unit.executor.powercap import RANGE, Powercap
from tests.unit.sidecar.node import wait_until

CPUS = os.cpu_count() or 1
HOP = Hop("i", 0, "e", 1.0, 1.0, 1.0, 2.0, computed=0.5)


class Clocks:
    """Times of an executor, and its meter; ``pass_time`` advances all of them."""

    def __init__(self, tree: Powercap) -> None:
        self.tree = tree
        self.time = self.busy = self.cpu = 0.0
        meter = RaplMeter(find_zones(tree.root))
        self.bill = EnergyBill(meter, lambda: self.busy, lambda: self.time, lambda: self.cpu)

    def pass_time(self, seconds: float, joules: float, busy: float, cpu: float) -> None:
        self.time += seconds
        self.busy += busy
        self.cpu += cpu
        self.tree.use(joules)
        self.bill.update()

    def charge(self, computed: float = 0.5, component: str = "thinker") -> float:
        hop = Hop("i", 0, "e", 1.0, 1.0, 1.0, 2.0, computed=computed)
        return self.bill.charge_hop(component, hop).joules


@pytest.fixture
def tree(tmp_path: Path) -> Powercap:
    return Powercap(tmp_path)


@pytest.fixture
def clocks(tree: Powercap) -> Clocks:
    return Clocks(tree)


def test_processors_and_memory_count_and_their_parts_do_not(tree: Powercap):
    meter = RaplMeter(find_zones(tree.root))

    for zone in (
        "intel-rapl:0",
        "intel-rapl:0:0",
        "intel-rapl:0:1",
        "intel-rapl:1",
        "intel-rapl:2",
        "intel-rapl-mmio:0",
    ):
        tree.use(10.0, zone)

    assert [zone.name for zone in find_zones(tree.root)] == ["intel-rapl:0", "intel-rapl:0:1", "intel-rapl:1"]
    assert meter.read_joules() == pytest.approx(30.0)
    assert meter.read_joules() == pytest.approx(30.0)


def test_a_counter_that_wraps_around_goes_on(tree: Powercap):
    tree.set_joules("intel-rapl:0", RANGE / 1e6 - 4.0)
    meter = RaplMeter(find_zones(tree.root))

    tree.use(10.0)

    assert tree.joules("intel-rapl:0") == pytest.approx(6.0)
    assert meter.read_joules() == pytest.approx(10.0)


def test_there_is_no_meter_where_nothing_can_be_read(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    locked_tree = Powercap(tmp_path / "locked")
    for zone in ("intel-rapl:0", "intel-rapl:1"):
        (locked_tree.root / zone / "energy_uj").unlink()

    assert open_meter("cpu", root=tmp_path / "none") is None
    assert open_meter("cpu", root=tmp_path / "empty") is None
    assert open_meter("cpu", root=locked_tree.root) is None
    assert open_meter("cpu", root=Powercap(tmp_path / "whole").root) is not None


@pytest.mark.parametrize(
    ("device", "gpus", "visible", "expected_gpus"),
    [
        ("cuda", 1, "", ["0"]),
        ("cuda:1", 2, "", ["1", "2"]),
        ("cuda", 2, "3, 5,6", ["3", "5"]),
        ("cuda:1", 1, "GPU-aa,GPU-bb", ["GPU-bb"]),
    ],
)
def test_gpus_are_those_that_the_process_sees(device: str, gpus: int, visible: str, expected_gpus: list[str]):
    assert visible_gpus(device, gpus, visible) == expected_gpus


def test_a_job_is_charged_its_seconds_by_the_power_of_the_device(clocks: Clocks):
    before = clocks.charge()
    clocks.pass_time(2.0, joules=80.0, busy=2.0, cpu=2.0 * CPUS)

    assert before == -1.0
    assert clocks.charge(0.5) == pytest.approx(20.0)


def test_what_is_used_while_nothing_computes_is_nobodys(clocks: Clocks):
    clocks.pass_time(2.0, joules=80.0, busy=0.5, cpu=2.0 * CPUS)
    clocks.pass_time(2.0, joules=80.0, busy=0.0, cpu=2.0 * CPUS)

    assert clocks.charge(0.5) == pytest.approx(20.0), "a quarter of the time was busy, and a quarter of 80 J is charged"


def test_other_processes_of_the_machine_are_not_charged_to_this_one(clocks: Clocks):
    clocks.pass_time(2.0, joules=80.0, busy=2.0, cpu=0.5 * CPUS)

    assert clocks.charge(2.0) == pytest.approx(20.0)


def test_components_side_by_side_share_the_joules_of_their_device(clocks: Clocks):
    clocks.pass_time(2.0, joules=80.0, busy=4.0, cpu=2.0 * CPUS)

    assert clocks.charge(2.0, "vision") + clocks.charge(2.0, "thinker") == pytest.approx(80.0)


def test_a_second_costs_what_it_did_lately(clocks: Clocks):
    clocks.pass_time(5.0, joules=500.0, busy=5.0, cpu=5.0 * CPUS)
    for _ in range(20):
        clocks.pass_time(5.0, joules=50.0, busy=5.0, cpu=5.0 * CPUS)

    assert clocks.charge(1.0) == pytest.approx(10.0, rel=0.01)


async def test_an_executor_reads_its_meter_beside_its_work(
    here: Place, tree: Powercap, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(energy_bill, "READ_SECONDS", 0.01)
    new_executor = await here.executor("a", {"number": put_number})
    runner, meter = new_executor._runners["number"], RaplMeter(find_zones(tree.root))
    runner.busy = 0.0  # type: ignore[attr-defined]
    bill = EnergyBill(meter, new_executor._vitals.busy_seconds, cpu=lambda: new_executor._vitals.busy_seconds() * CPUS)
    following = asyncio.ensure_future(bill.follow_meter())
    tree.use(10.0)
    runner.busy = 1e6  # type: ignore[attr-defined]

    await wait_until(lambda: bill.charge_hop("number", HOP).joules > 0)
    for zone in find_zones(tree.root):
        (zone / "energy_uj").unlink()
    await asyncio.wait_for(following, 20)  # it ends without the meter

    assert bill.charge_hop("number", HOP) == HOP


def test_a_meter_that_is_gone_is_left_alone(clocks: Clocks, tree: Powercap):
    clocks.pass_time(1.0, joules=10.0, busy=1.0, cpu=1.0 * CPUS)
    (tree.root / "intel-rapl:0" / "energy_uj").unlink()
    clocks.time += 2.0

    clocks.bill.update()
    clocks.bill.update()

    assert clocks.bill.charge_hop("thinker", HOP) == HOP


def test_what_is_charged_is_counted_by_component(clocks: Clocks):
    clocks.pass_time(1.0, joules=10.0, busy=1.0, cpu=1.0 * CPUS)

    clocks.charge(0.25, "metered")
    clocks.charge(0.5, "metered")

    assert b'omnibus_energy_joules_total{stage="metered"} 7.5' in render_exposition()
