"""From plans of measured models to simulations: devices from profiles, replicas on nodes, links."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from omnibus.plan import ModelPlan
from omnibus_planner.declared.planned_spec import DeclaredNode
from omnibus_planner.optimize.links import PULL_GB_S, PULL_SECONDS, declared_gb_s
from omnibus_planner.optimize.model_inputs import ModelInputs
from omnibus_planner.simulate.calibrate import calibrate_devices
from omnibus_planner.simulate.cluster import SimulatedModel
from omnibus_planner.simulate.devices import ModelDevices
from omnibus_planner.simulate.links import Links
from omnibus_planner.simulate.option_fit import scale_options


def calibrated_devices(ready: ModelInputs) -> ModelDevices:
    """Return devices of the options of ``ready`` by its profile. Raises ``BadRequest`` for unmeasured components."""
    model = ready.model
    own = {name: option for name, option in ready.measured_options.items() if name not in ready.lent}
    return calibrate_devices(ready.profile, model.components, model.kinds, model.encoders, own)


def learned_devices(devices: ModelDevices, ready: ModelInputs) -> ModelDevices:
    """Scale ``devices`` of a profile by the learned factors of ``ready``."""
    return scale_options(devices, {name: each.factor for name, each in ready.learned.items()})


def simulated_models(
    ready: Mapping[str, ModelInputs],
    plans: Mapping[str, ModelPlan],
    devices: Mapping[str, ModelDevices],
    explain: Mapping[str, Any],
) -> dict[str, SimulatedModel]:
    """Combine ``plans``, their ``devices`` and the nodes of replicas.

    The nodes are in ``explain``, the planner's explanation.
    """
    places = placed_replicas(explain)
    return {
        name: SimulatedModel(plan, devices[name], places.get(name, {}), ready[name].edges.edge_gb)
        for name, plan in plans.items()
    }


def placed_replicas(explain: Mapping[str, Any]) -> dict[str, dict[str, dict[str, int]]]:
    """Return the replicas by model, option and node in a plan's explanation."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for deployment in explain.get("planned", {}).get("deployments", ()):
        for place, count in deployment.get("nodes", {}).items():
            named, _, node = place.rpartition("@")
            model, _, option = named.rpartition("/")
            found.setdefault(model, {}).setdefault(option, {})[node] = count
    return found


def simulation_links(nodes: Mapping[str, DeclaredNode]) -> Links:
    """Return the declared links between ``nodes``; without a declared capacity, that of the CPU."""
    return Links(PULL_SECONDS, partial(_link_gb_s, nodes))


def planned_links(explain: Mapping[str, Any]) -> Links:
    """Return the links in a plan's explanation: pairs of nodes with expected tensors between them."""
    rows = explain.get("planned", {}).get("links", ())
    known = {(row["from"], row["to"]): row["capacity"] for row in rows if "capacity" in row}
    return Links(PULL_SECONDS, lambda start, end: known.get((start, end), PULL_GB_S))


def _link_gb_s(nodes: Mapping[str, DeclaredNode], start: str, end: str) -> float:
    return declared_gb_s(nodes, start, end) or PULL_GB_S
