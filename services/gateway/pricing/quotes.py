"""Prices before a request runs: what each path of the plan would cost by the sizes of the request."""

import time
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from omnibus.errors import CostLimitExceeded, StoreUnavailable
from omnibus.plan import Path
from omnibus.pricing import RequestUsage, stage_usage, sum_stages
from omnibus.profile import QUANTITIES, ModelProfile
from omnibus.store import Store
from services.gateway.pricing.cost_fit import COMPLETION, SPEECH, StageKey
from services.gateway.pricing.meter import UsageMeter
from services.gateway.pricing.quantities import Estimates
from services.gateway.routing.assignment import Assignment
from services.gateway.routing.router import Router

#: Seconds for which profiles that were read from the store are good.
PROFILE_SECONDS = 60.0


class PathQuote(msgspec.Struct, frozen=True):
    """Expected usage along ``path``, which the plan gives ``share`` of such requests. ``basis``: "measured", or
    "profile" where a stage has not been measured here yet.
    """

    path: str
    share: float
    basis: str
    usage: RequestUsage


class Quote(msgspec.Struct, frozen=True):
    """Expected price of a request: that of its paths by their shares, and of each. ``money`` is absent where the plan
    has no price for a stage of them.
    """

    model: str
    type: str
    gpu_seconds: float
    quantities: dict[str, float]
    paths: tuple[PathQuote, ...]
    money: float | UnsetType = UNSET
    currency: str | UnsetType = UNSET
    object: str = "quote"

    @property
    def cheapest(self) -> PathQuote:
        """The path with the lowest price, in money or else in GPU-seconds."""
        return min(self.paths, key=lambda each: _amount(each.usage))


class Quotes:
    """Quotes of one gateway, by what its ``meter`` has learned, and by profiles from ``store`` until that is enough."""

    def __init__(self, router: Router, meter: UsageMeter) -> None:
        self._router = router
        self._meter = meter
        self.store: Store | None = None
        self._profiles: Mapping[str, ModelProfile] = {}
        self._read = -PROFILE_SECONDS

    async def quote(self, assignment: Assignment, estimates: Estimates, answer: float, *, whole: bool) -> Quote:
        """The quote of a request with ``estimates`` whose answer has at most ``answer`` tokens, all if ``whole``.

        Raises ``CostLimitExceeded`` where nothing is known of a stage: there is neither a profile nor a request yet.
        """
        await self._read_profiles()
        part = assignment.parts[0]
        quantities = self._expected_quantities(part.model, part.kind, estimates, answer, whole=whole)
        paths = [path for path in self._router.find_paths(part) if path.rate > 0] or self._router.find_paths(part)
        total = sum(path.rate for path in paths) or float(len(paths))
        quoted = tuple(self._quote_path(assignment, path, quantities, (path.rate or 1.0) / total) for path in paths)
        money = [each.usage.money for each in quoted]
        known = [each for each in money if each is not UNSET]
        priced = len(known) == len(money)
        return Quote(
            part.model,
            part.kind,
            round(sum(each.share * each.usage.gpu_seconds for each in quoted), 7),
            {name: round(value, 3) for name, value in zip(QUANTITIES, quantities, strict=True) if value},
            quoted,
            round(sum(each.share * value for each, value in zip(quoted, known, strict=True)), 12) if priced else UNSET,
            self._meter.currency if priced else UNSET,
        )

    def _expected_quantities(
        self, model: str, kind: str, estimates: Estimates, answer: float, *, whole: bool
    ) -> list[float]:
        quantities = [0.0] * len(QUANTITIES)
        quantities[COMPLETION], quantities[SPEECH] = self._meter.fits.expected_answer(model, kind, answer, whole=whole)
        for place, value in estimates:
            quantities[place] = value
        return quantities

    def _quote_path(self, assignment: Assignment, path: Path, quantities: Sequence[float], share: float) -> PathQuote:
        part = assignment.parts[0]
        profile = self._profiles.get(part.model)
        lines = profile.lines if profile is not None else {}
        stages, basis = [], "measured"
        for node, component in _first_nodes(part.nodes, part.components):
            option = path.options[component]
            found = self._meter.fits.predict_stage(StageKey(part.model, option, component), quantities, lines)
            if found is None:
                raise CostLimitExceeded(
                    f"nothing is known yet of what {component} takes in option {option!r}: send some requests without "
                    "a limit of cost, or measure the model with `omnibus profile --put`",
                    stage=component,
                )
            seconds, known = found
            basis = known if known == "profile" else basis
            stages.append(
                stage_usage(node, component, option, self._meter.find_rate(part.model, option), round(seconds, 7))
            )
        return PathQuote(path.name, round(share, 6), basis, sum_stages(stages, self._meter.currency))

    async def _read_profiles(self) -> None:
        now = time.monotonic()
        if self.store is None or now < self._read + PROFILE_SECONDS:
            return
        self._read = now
        try:
            self._profiles = await self.store.profiles()
        except StoreUnavailable:  # what was learned is enough, or the quote says that it is not
            self._read = -PROFILE_SECONDS


def choose_path(quote: Quote, limit: float, pinned: str = "") -> str:
    """The path to take within ``limit`` of money: empty for any, else the cheapest one. Raises ``CostLimitExceeded``.

    Without prices the limit is refused: a limit that nobody can check would be no limit.
    """
    paths = [each for each in quote.paths if each.path == pinned] if pinned else quote.paths
    amounts = {each.path: each.usage.money for each in paths}
    if not amounts or UNSET in amounts.values():
        raise CostLimitExceeded(
            "this plan has no prices in money, so that a limit of cost cannot be held: declare a currency and prices"
        )
    known = {path: float(money) for path, money in amounts.items() if money is not UNSET}
    if max(known.values()) <= limit:
        return pinned
    path = min(known, key=lambda each: known[each])
    if known[path] > limit:
        raise CostLimitExceeded(
            f"this request is expected to cost {known[path]:.9f} {quote.currency}, and {limit:.9f} are allowed: "
            "ask for less, or allow more",
            param="x-omnibus-max-cost",
        )
    return path


def _first_nodes(nodes: Sequence[int], components: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Each component with its first node: what is known of a component is of all its nodes together."""
    seen: set[str] = set()
    for node, component in zip(nodes, components, strict=True):
        if component not in seen:
            seen.add(component)
            yield node, component


def _amount(usage: RequestUsage) -> float:
    return usage.gpu_seconds if usage.money is UNSET else usage.money
