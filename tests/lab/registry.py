"""All experiments by name, in the order of the page."""

from tests.lab import modserve, modserve_day, modserve_load, omni, outputs, routing, strategies, triinfer
from tests.lab.experiment import Experiment

#: Papers by a short name.
PAPERS = {
    "planner": "Planner paper: Cornserve's planner and runtime",
    "triinfer": "TriInfer",
    "modserve": "ModServe",
}

_ALL = (
    Experiment("monolith", "Throughput of plans over monoliths", "planner", "Fig. 6", omni.compare_throughput),
    Experiment("cells", "Cells of 8 and 16 GPUs", "planner", "Figs. 6b, 7", outputs.compare_cells),
    Experiment("latency", "Latency by request type", "planner", "Fig. 8, Table 2", omni.compare_latency),
    Experiment("workloads", "The best strategy differs", "planner", "Fig. 2", strategies.compare_workloads),
    Experiment("servegen", "Models with image input", "planner", "Fig. 9", strategies.compare_servegen),
    Experiment("strategies", "Controlled workloads", "planner", "Fig. 10, Table 3", strategies.compare_strategies),
    Experiment("images", "Image output", "planner", "Section 7.3.3", outputs.compare_images),
    Experiment("distribution", "Latency by deployment", "planner", "Fig. 11", strategies.compare_latency),
    Experiment("routing", "Static against dynamic routing", "planner", "Section 7.4", routing.compare_routing),
    Experiment("ratios", "Ratios of instances", "triinfer", "Fig. 5", triinfer.compare_ratios),
    Experiment("methods", "Methods by goals", "triinfer", "Fig. 6", triinfer.compare_methods),
    Experiment("attainment", "Requests in time by load", "triinfer", "Fig. 9", triinfer.compare_attainment),
    Experiment("ablation", "Gain by schedule and shape", "triinfer", "Fig. 10", triinfer.compare_ablation),
    Experiment("rank", "Rank of Algorithm 2", "triinfer", "Table 3", triinfer.rank_heuristic),
    Experiment("systems", "Decoupled, scheduled, routed", "modserve", "Fig. 14", modserve.compare_systems),
    Experiment("loads", "The most load in time", "modserve", "Fig. 15", modserve_load.compare_loads),
    Experiment("day", "A day with a burst of images", "modserve", "Fig. 16", modserve_day.compare_day),
    Experiment("goals", "Tightness of goals", "modserve", "Fig. 17", modserve_load.compare_goals),
    Experiment("instances", "Image and text instances", "modserve", "Fig. 18", modserve.compare_instances),
    Experiment("split", "Encoders apart from prefill", "modserve", "Fig. 19", modserve.compare_split),
)
EXPERIMENTS = {each.name: each for each in _ALL}
