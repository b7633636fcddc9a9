"""Nodes as Linux namespaces of network, mounts, IPC, host name and processes.

    with Switch() as switch, switch.add_node("a") as a, switch.add_node("b") as b:
        process = subprocess.Popen([*a.command_prefix, sys.executable, "-m", "omnibus_sidecar"])
        a.cut_cable(DATA)

Each node also has its own ``/dev/shm`` and two cables to a *hub*, a namespace with two bridges. ``BUS`` reaches NATS,
which runs in the hub, and ``DATA`` the other nodes. A node off a bridge loses packets silently, as at a switch whose
cable is cut. Its own link is up, and its peers get neither a FIN nor a reset. Everything ends with the process that
made it.

Needs iproute2, util-linux, and either root or a kernel that lets every user create user namespaces.
"""

import json
import os
import shutil
import signal
import subprocess
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import Any

from omnibus.process.tuning import die_with_parent

BUS, DATA = "bus", "data"
_SUBNETS = {BUS: "10.199.1", DATA: "10.199.2"}
_HUB_NUMBER = 1
_SHM_SIZE = "4g"
_COMMAND_SECONDS = 20.0
_START_SECONDS = 10.0
#: ``/sys`` shows network devices of those who mounted it, and UCX reads them there; cgroups remain those of outside.
_OWN_SYS = (
    "mkdir /dev/shm/groups && mount --rbind /sys/fs/cgroup /dev/shm/groups && mount -t sysfs sysfs /sys"
    " && mount --move /dev/shm/groups /sys/fs/cgroup && rmdir /dev/shm/groups"
)
#: Prefix of an unused MAC address.
_NOBODY_MAC = "02:00:00:00:00:fe"
_IS_ROOT = os.geteuid() == 0


@lru_cache(1)
def missing_reason() -> str:
    """The reason why there can be no namespaces here; empty when there can."""
    absent = [program for program in ("unshare", "nsenter", "ip", "tc") if shutil.which(program) is None]
    if absent:
        return f"{', '.join(absent)} not installed (util-linux, iproute2)"
    try:
        with Switch() as switch, switch.add_node("probe"):
            return ""
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return f"no namespaces ({'root' if _IS_ROOT else 'not root'}): {error}"


class Namespaces(AbstractContextManager["Namespaces"]):
    """Namespaces that live as long as their first process. ``kinds`` are options of ``unshare``."""

    def __init__(self, kinds: tuple[str, ...], script: str) -> None:
        self._kinds = kinds
        self._script = f"{script} && echo ready && exec sleep infinity"
        self._outer: subprocess.Popen[bytes] | None = None

    def start(self, prefix: tuple[str, ...] = ()) -> None:
        """Start the first process as a child of ``prefix``. Raises ``RuntimeError`` with its output."""
        command = [*prefix, "unshare", *self._kinds, "--kill-child", "--fork", "sh", "-c", self._script]
        self._outer = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=die_with_parent()
        )
        assert self._outer.stdout is not None
        assert self._outer.stderr is not None
        if self._outer.stdout.readline() != b"ready\n":
            self._outer.kill()
            raise RuntimeError(self._outer.stderr.read().decode(errors="replace").strip())

    @property
    def first_process(self) -> int:
        """The id out here of the first process in there."""
        assert self._outer is not None
        return last_descendant(self._outer.pid)

    def stop(self) -> None:
        """Kill the first process, and with it its process namespace; idempotent."""
        if self._outer is None or self._outer.poll() is not None:
            return
        os.kill(self.first_process, signal.SIGKILL)
        self._outer.wait(_START_SECONDS)
        for pipe in (self._outer.stdout, self._outer.stderr):
            if pipe is not None:
                pipe.close()

    def __exit__(self, *_: object) -> None:
        self.stop()


class Switch(Namespaces):
    """The hub with its two bridges. Its own addresses end in 1."""

    def __init__(self) -> None:
        user = () if _IS_ROOT else ("--user", "--map-root-user")
        super().__init__((*user, "--net", "--mount", "--pid", "--mount-proc"), "true")
        self._count = _HUB_NUMBER

    def __enter__(self) -> "Switch":
        self.start()
        self.run("ip link set lo up")
        for cable, subnet in _SUBNETS.items():
            self.run(f"ip link add {cable} type bridge")
            self.run(f"ip addr add {subnet}.{_HUB_NUMBER}/24 dev {cable}")
            self.run(f"ip link set {cable} up")
        return self

    @property
    def command_prefix(self) -> tuple[str, ...]:
        """Command prefix that runs the rest in the hub."""
        return (*self.network_prefix, "--pid")

    @property
    def network_prefix(self) -> tuple[str, ...]:
        """The same with process ids of the outside."""
        return (*self.user_prefix, "--net")

    @property
    def user_prefix(self) -> tuple[str, ...]:
        """``nsenter`` of the hub's user namespace, if it has one."""
        user = () if _IS_ROOT else ("--user", "--preserve-credentials")
        return ("nsenter", "--target", str(self.first_process), *user)

    def address(self, cable: str) -> str:
        return f"{_SUBNETS[cable]}.{_HUB_NUMBER}"

    def add_node(self, name: str) -> "Node":
        """A node that is not started yet: enter it."""
        self._count += 1
        return Node(self, name, self._count)

    def run(self, command: str) -> str:
        """Run ``command`` in the hub and return its output."""
        return _run_process((*self.network_prefix, *command.split()))


class Node(Namespaces):
    """One machine. ``number`` is the last part of its addresses."""

    def __init__(self, switch: Switch, name: str, number: int) -> None:
        mount = f"mount -t tmpfs -o size={_SHM_SIZE} tmpfs /dev/shm && {{ {_OWN_SYS} || true; }}"
        super().__init__(("--net", "--mount", "--ipc", "--uts", "--pid", "--mount-proc"), mount)
        self.name = name
        self._switch = switch
        self._number = number

    def __enter__(self) -> "Node":
        self.power_on()
        return self

    def power_on(self) -> None:
        """Start the node with empty memory and both cables connected."""
        # The hub's network too: it is where the other ends of its cables are.
        self.start(self._switch.network_prefix)
        self._run_command("ip link set lo up")
        pid = self.first_process
        for index, (cable, subnet) in enumerate(_SUBNETS.items()):
            # As on a real machine its MAC addresses are always the same: others remember them.
            mac = f"02:00:00:00:{index:02x}:{self._number:02x}"
            port = self._port_name(cable)
            self._switch.run(f"ip link add {port} type veth peer name {cable} address {mac} netns {pid}")
            self._switch.run(f"ip link set {port} master {cable} up")
            self._run_command(f"ip addr add {subnet}.{self._number}/24 dev {cable}")
            self._run_command(f"ip link set {cable} up")

    def address(self, cable: str) -> str:
        return f"{_SUBNETS[cable]}.{self._number}"

    @property
    def command_prefix(self) -> tuple[str, ...]:
        """Command prefix that runs the rest as a process in this node."""
        return (*self._user_prefix, "--net", "--mount", "--ipc", "--uts", "--pid")

    @property
    def visitor_prefix(self) -> tuple[str, ...]:
        """Command prefix that enters the node with host process ids.

        The process itself enters, and receives signals as any child.
        """
        return (*self._user_prefix, "--net", "--mount", "--ipc", "--uts")

    @property
    def _user_prefix(self) -> tuple[str, ...]:
        _, _, _, *user = self._switch.user_prefix
        return ("nsenter", "--target", str(self.first_process), *user)

    # What may happen to a machine and its cables

    def power_off(self) -> None:
        """End all processes at once, without any further packet."""
        for cable in _SUBNETS:
            self.cut_cable(cable)
        self.stop()
        for cable in _SUBNETS:  # the kernel keeps a network as long as there are connections to be ended
            self._switch.run(f"ip link delete {self._port_name(cable)}")

    def cut_cable(self, cable: str) -> None:
        """Lose all packets to and from here in silence."""
        self._switch.run(f"ip link set {self._port_name(cable)} nomaster")

    def heal_cable(self, cable: str) -> None:
        """Undo ``cut_cable``."""
        self._switch.run(f"ip link set {self._port_name(cable)} master {cable}")

    def deafen(self, speaker: "Node") -> None:
        """Drop packets that ``speaker`` sends here over ``DATA``.

        The opposite direction works.
        """
        speaker._run_command(f"ip neigh replace {self.address(DATA)} lladdr {_NOBODY_MAC} dev {DATA} nud permanent")

    def hear_again(self, speaker: "Node") -> None:
        """Undo ``deafen``."""
        speaker._run_command(f"ip neigh del {self.address(DATA)} dev {DATA}")

    def limit_rate(self, rate: str) -> None:
        """Limit incoming ``DATA`` traffic to ``rate``, in units of ``tc``: ``100mbit``."""
        port = self._port_name(DATA)
        self._switch.run(f"tc qdisc replace dev {port} root tbf rate {rate} burst 256kb latency 20ms")

    def lift_rate(self) -> None:
        """Undo ``limit_rate``."""
        self._switch.run(f"tc qdisc del dev {self._port_name(DATA)} root")

    def received_bytes(self) -> int:
        """Bytes received over ``DATA``, including packet headers."""
        rows: list[dict[str, Any]] = json.loads(
            self._switch.run(f"ip -json -statistics link show {self._port_name(DATA)}")
        )
        return int(rows[0]["stats64"]["tx"]["bytes"])

    def _port_name(self, cable: str) -> str:
        return f"{cable}{self._number}"

    def _run_command(self, command: str) -> str:
        return _run_process((*self._user_prefix, "--net", *command.split()))


def last_descendant(pid: int) -> int:
    """Last process in the chain from ``pid``, where each has one child."""
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[0])
    return pid


def _run_process(command: tuple[str, ...]) -> str:
    process = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {process.stderr.strip()}")
    return process.stdout
