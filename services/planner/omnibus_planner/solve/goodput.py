"""Goodput as the objective: proposed replicas, judged and improved by a replay of requests.

Throughput is linear in replicas and paths, so the solver's optimum is exact. Goodput is not linear. So the search
starts from the optimum for throughput. It fills idle GPUs, and moves one replica after the other to another option, as
long as a replay shows that more requests are served in time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import ceil

#: The goodput in req/s of replicas by option; if it is not more than the second argument, any number up to that.
Judge = Callable[[Mapping[str, int], float], float]


def improve_goodput(
    candidates: Iterable[Mapping[str, int]], gpus: Mapping[str, int], budget: int, judge: Judge
) -> tuple[dict[str, int], float]:
    """Return the best of ``candidates``, improved over neighbours within ``budget`` GPUs.

    ``gpus`` are those of one replica of each allowed option. Returns the replicas and their goodput.
    """
    best, rate, known = dict[str, int](), 0.0, set[tuple[tuple[str, int], ...]]()
    waiting: Iterable[Mapping[str, int]] = candidates
    while True:
        better = False
        for replicas in waiting:
            named = {option: count for option, count in replicas.items() if count}
            key = tuple(sorted(named.items()))
            if key in known:
                continue
            known.add(key)
            found = judge(named, rate)
            if found > rate:
                best, rate, better = named, found, True
        if not better:
            return best, rate
        waiting = list(_neighbours(best, gpus, budget))


def _neighbours(replicas: Mapping[str, int], gpus: Mapping[str, int], budget: int) -> Iterator[dict[str, int]]:
    """Yield ``replicas`` with one more on idle GPUs, and with the GPUs of one moved to another option.

    For a larger replica, several smaller ones make room.
    """
    idle = budget - sum(gpus[option] * count for option, count in replicas.items())
    for target, size in gpus.items():
        if size <= idle:
            yield {**replicas, target: replicas.get(target, 0) + 1}
        for source in replicas:
            source_count = max(1, ceil((size - max(0, idle)) / gpus[source]))
            if source == target or replicas[source] < source_count:
                continue
            target_count = max(1, source_count * gpus[source] // size)
            neighbour = {
                **replicas,
                source: replicas[source] - source_count,
                target: replicas.get(target, 0) + target_count,
            }
            yield {option: count for option, count in neighbour.items() if count}
