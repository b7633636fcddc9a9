"""The planner paper's section 7.4: static routes against queries of queues at each hop."""

from collections.abc import Iterable, Iterator

from omnibus.plan import ModelPlan
from omnibus_planner.simulate.arrivals import Arrival
from omnibus_planner.simulate.cluster import RoutingRules
from tests.lab.experiment import Findings, PaperClaim, Plot, Table, times
from tests.lab.strategies import INTERNVL, KINDS, ImageWorkload, build_model
from tests.lab.world import MODEL

_WORKLOAD = ImageWorkload("less text", 1920 * 1080, 1.0, 100, 100)
_REPLICAS = {"E": 4, "M": 6}
#: Seconds of one query: over NATS on one machine, and slower ones. At 28 ms the paper's figure results.
_QUERY_SECONDS = (0.0005, 0.005, 0.010, 0.020, 0.028)


def compare_routing() -> Findings:
    """Compare static with dynamic routing."""
    model = build_model(INTERNVL, _WORKLOAD)
    result = model.route(_REPLICAS)
    plan, rate = result.models[MODEL], 1.1 * result.capacity[MODEL]
    seconds = 300.0

    def throughput(rules: RoutingRules, query: float = 0.0) -> float:
        arrivals = _query_queues(model.even_load(rate, seconds), query)
        return model.run(plan, arrivals, seconds, rules=rules, warm_up=0.3).throughput

    static, turn = throughput(RoutingRules()), throughput(RoutingRules(least_work=False))
    rows, queries = (
        [("static path, replica with the least work", "-", static)],
        sum(_REPLICAS.values()) + _REPLICAS["M"],
    )
    rows.append(("static path, replicas in turn (the paper)", "-", turn))
    dynamic = {}
    for each in _QUERY_SECONDS:
        dynamic[each] = throughput(RoutingRules(shortest_queue=True), queries * each)
        rows.append(("shortest queue, asked one after the other", f"{1000 * each:g} ms", dynamic[each]))
    nats, slow = dynamic[_QUERY_SECONDS[0]], dynamic[_QUERY_SECONDS[-1]]
    share = _encoder_share(plan)
    return Findings(
        (
            "InternVL 3 38B, four encoders and six monoliths on 16 A100, requests of figure 10's 'less text'",
            f"The dynamic router asks all {queries} executors that a request may go to, one after the other, for one "
            "request at a time, and takes the path with the shortest queue",
            "Requests come at 110 % of what the static paths serve; what ends in steady state",
        ),
        (
            PaperClaim(
                "static routing, req/s", "9.27", f"{turn:.2f} (in turn), {static:.2f} (least work, as gateways do)"
            ),
            PaperClaim("requests through the encoders", "67.5 %", f"{share:.1%}"),
            PaperClaim("dynamic routing, req/s", "2.50", f"{slow:.2f} at 28 ms a query, {nats:.2f} at 0.5 ms"),
            PaperClaim(
                "static over dynamic", "3.7x", f"{times(static / slow)} at 28 ms, {times(static / nats)} at 0.5 ms"
            ),
        ),
        (Table("Throughput", ("routing", "query", "req/s"), tuple(rows)),),
        (
            Plot(
                "Throughput by seconds of a query", "ms of a query", "req/s",
                {
                    "dynamic": tuple((1000 * each, found) for each, found in dynamic.items()),
                    "static": tuple((1000 * each, static) for each in _QUERY_SECONDS),
                },
            ),
        ),
        (
            "3.7x is a property of slow queries in sequence, not of dynamic routing. A request and its reply over NATS "
            "take half a millisecond. With that, the queries cost next to nothing.",
        ),
    )  # fmt: skip


def _query_queues(arrivals: Iterable[Arrival], seconds: float) -> Iterator[Arrival]:
    """Delay requests by the router's queries: each takes ``seconds``."""
    free = 0.0
    for each in arrivals:
        free = max(free, each.at) + seconds
        yield each._replace(at=free)


def _encoder_share(plan: ModelPlan) -> float:
    paths = plan.types["+".join(KINDS)]
    return sum(path.rate for path in paths if "E" in path.options.values()) / sum(path.rate for path in paths)
