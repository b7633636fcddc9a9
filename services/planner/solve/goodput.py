"""Goodput as the objective: replicas that a solver proposes, judged and improved by a replay of requests.

Throughput is linear in replicas and paths, so the solver's best is exact; whether requests are served in time is not.
What is best for throughput is a good place to begin: from there one replica after the other is given to another
option, as long as a replay says that more requests are served in time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

#: The goodput of replicas by option in req/s; a number that is no more than the second argument if theirs is not more.
Judge = Callable[[Mapping[str, int], float], float]


def improve_goodput(
    candidates: Iterable[Mapping[str, int]], gpus: Mapping[str, int], judge: Judge
) -> tuple[dict[str, int], float]:
    """The best of ``candidates``, and then of their neighbours with no more GPUs, until no neighbour is better.

    ``gpus`` are those of one replica of each option that there may be. Returns the replicas and their goodput.
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
        waiting = list(_neighbours(best, gpus))


def _neighbours(replicas: Mapping[str, int], gpus: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield ``replicas`` with one less of an option and as many more of another as its GPUs are enough for."""
    for source in replicas:
        for target in gpus:
            more = gpus[source] // gpus[target]
            if source != target and more:
                moved = {**replicas, source: replicas[source] - 1, target: replicas.get(target, 0) + more}
                yield {option: count for option, count in moved.items() if count}
