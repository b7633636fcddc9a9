"""Prices before a request runs: its cost on each path of the plan, by its sizes."""

import inspect
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from omnibus.errors import BadRequest, CostLimitExceeded, StoreUnavailable
from omnibus.plan import Path
from omnibus.pricing import RequestUsage, stage_usage, sum_stages
from omnibus.profile import ModelProfile
from omnibus.store import Store
from omnibus.task import CompositeTask, Segment
from omnibus_gateway.pricing.meter import (
    COMPLETION,
    SIZES,
    SPEECH,
    WORK,
    Estimates,
    PriceOptions,
    UsageMeter,
    apply_estimates,
)
from omnibus_gateway.routing.assignment import ModelPart
from omnibus_gateway.routing.router import Router

#: Limit of images that cost nothing.
MAX_ALLOWED = 1 << 20
#: Lifetime of profiles that were read from the store, in seconds.
PROFILE_SECONDS = 60.0


class QuoteReady(Exception):
    """The quote ``body``, raised as the answer instead of sending the request."""

    def __init__(self, body: bytes) -> None:
        super().__init__("the quote is the answer")
        self.body = body


class ExpectedSizes(NamedTuple):
    """Sizes of a request that are known before it runs.

    ``estimates`` are those of a chat; without them, stages are priced by their estimated work. ``answers`` is the
    number of expected answers, of at most ``tokens`` each. A ``whole`` answer has all of these tokens.
    """

    estimates: Estimates = ()
    tokens: float = 0.0
    answers: int = 1
    whole: bool = False


class PathQuote(msgspec.Struct, frozen=True):
    """Expected usage on ``path``, which the plan gives ``share`` of such requests.

    ``basis`` is "measured", or "profile" if this gateway has not measured one of the stages yet.
    """

    path: str
    share: float
    basis: str
    usage: RequestUsage


class Quote(msgspec.Struct, frozen=True):
    """Expected price of a request: the mean of its paths by their shares, and the price of each.

    ``money`` is absent if the plan has no price for one of the stages.
    """

    model: str
    type: str
    gpu_seconds: float
    quantities: dict[str, float]
    paths: tuple[PathQuote, ...]
    money: float | UnsetType = UNSET
    currency: str | UnsetType = UNSET
    #: Quote of one image that the answer may call for; the price above includes it.
    image: "Quote | UnsetType" = UNSET
    object: str = "quote"

    def with_image(self, image: "Quote") -> "Quote":
        """Return this quote with the price of ``image`` added."""
        money: float | UnsetType = UNSET
        if self.money is not UNSET and image.money is not UNSET:
            money = round(self.money + image.money, 12)
        return msgspec.structs.replace(
            self,
            gpu_seconds=round(self.gpu_seconds + image.gpu_seconds, 7),
            money=money,
            currency=UNSET if money is UNSET else self.currency,
            image=image,
        )

    @property
    def cheapest(self) -> PathQuote:
        """The path with the lowest price, in money or else in GPU-seconds."""
        return min(self.paths, key=lambda each: _amount(each.usage))


class Quotes:
    """Quotes of one gateway.

    They use the fits of ``meter``, or the profiles in ``store`` until there are enough requests.
    """

    def __init__(self, router: Router, meter: UsageMeter) -> None:
        self._router = router
        self._meter = meter
        self.store: Store | None = None
        self._profiles: Mapping[str, ModelProfile] = {}
        self._read = -PROFILE_SECONDS

    def open_check(self, prices: PriceOptions, task: CompositeTask | None) -> "PriceCheck | None":
        """Return the check of a request to ``task``; None if ``prices`` need none.

        Raises ``BadRequest`` for a task with a graph that depends on results, and for None, which is an app.
        """
        if not prices.before:
            return None
        require_static(task)
        return PriceCheck(self, prices)

    async def quote(self, model: str, segment: Segment, expected_sizes: ExpectedSizes) -> Quote:
        """Return the quote of a request to ``model`` with the graph ``segment``.

        Raises ``CostLimitExceeded`` if a stage has neither a profile nor a finished request.
        """
        await self._read_profiles()
        assignment = self._router.assign(segment.nodes, model)
        part = assignment.parts[0]
        sizes = self._expected_sizes(part, expected_sizes)
        work = _stage_work(part, () if expected_sizes.estimates else segment.work)
        paths = [path for path in self._router.find_paths(part) if path.rate > 0] or self._router.find_paths(part)
        total = sum(path.rate for path in paths) or float(len(paths))
        path_quotes = tuple(self._quote_path(part, path, sizes, work, (path.rate or 1.0) / total) for path in paths)
        money = [each.usage.money for each in path_quotes]
        amounts = [each for each in money if each is not UNSET]
        is_priced = len(amounts) == len(money)
        return Quote(
            part.model,
            part.kind,
            round(sum(each.share * each.usage.gpu_seconds for each in path_quotes), 7),
            {name: round(value, 3) for name, value in zip(SIZES, [*sizes, work.total()], strict=True) if value},
            path_quotes,
            round(sum(each.share * value for each, value in zip(path_quotes, amounts, strict=True)), 12)
            if is_priced
            else UNSET,
            self._meter.currency if is_priced else UNSET,
        )

    def _expected_sizes(self, part: ModelPart, expected_sizes: ExpectedSizes) -> list[float]:
        """Return the sizes of the request, except for the stages' work."""
        sizes = [0.0] * WORK
        if expected_sizes.estimates:
            tokens, speech = self._meter.fits.expected_answer(
                part.model, part.kind, expected_sizes.tokens, whole=expected_sizes.whole
            )
            sizes[COMPLETION], sizes[SPEECH] = expected_sizes.answers * tokens, expected_sizes.answers * speech
        apply_estimates(sizes, expected_sizes.estimates)
        return sizes

    def _quote_path(
        self, part: ModelPart, path: Path, sizes: Sequence[float], work: Counter[int], share: float
    ) -> PathQuote:
        profile = self._profiles.get(part.model)
        lines = profile.lines if profile is not None else {}
        stages, basis = [], "measured"
        for node, of_stage in work.items():
            component = part.components[part.nodes.index(node)]
            option = path.options[component]
            prediction = self._meter.fits.predict_stage(
                self._meter.stage_key(part.model, option, component), [*sizes, float(of_stage)], lines
            )
            if prediction is None:
                raise CostLimitExceeded(
                    f"the cost of {component} in option {option!r} is unknown: send some requests without "
                    "a cost limit, or measure the model with `omnibus profile --put`",
                    stage=component,
                )
            seconds, fit_basis = prediction
            basis = fit_basis if fit_basis == "profile" else basis
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
        except StoreUnavailable:  # the fits may be enough; otherwise the quote fails
            self._read = -PROFILE_SECONDS


class ImageAllowance(NamedTuple):
    """Number of images that a cost limit covers, and their path."""

    most: int
    path: str


class PriceCheck:
    """Check of the price of one request before it is sent. The route sets ``expected``, its sizes.

    ``image`` is the quote of an image that the answer may call for; the limit must cover at least one. ``images`` is
    then the number that it covers, or None without a limit.
    """

    def __init__(self, quotes: Quotes, prices: PriceOptions) -> None:
        self._quotes = quotes
        self._prices = prices
        self.expected = ExpectedSizes()
        self.image: Quote | None = None
        self.images: ImageAllowance | None = None

    async def choose_path(self, model: str, segment: Segment, pinned_path: str) -> str:
        """Return the path for a request to ``model``: ``pinned_path``, or one within the limit.

        Raises ``QuoteReady`` for a request that only needs its price, and ``CostLimitExceeded``.
        """
        quote = await self._quotes.quote(model, segment, self.expected)
        if self._prices.quote or self._prices.limit is None:
            raise QuoteReady(msgspec.json.encode(quote if self.image is None else quote.with_image(self.image)))
        if self.image is None:
            return choose_path(quote, self._prices.limit, pinned_path)
        limit, prices = self._prices.limit, path_prices(self.image)
        cheapest = min(prices, key=lambda each: prices[each])
        path = choose_path(quote, limit, pinned_path, prices[cheapest])
        answers = path_prices(quote, path)
        left, price = limit - (answers[path] if path else max(answers.values())), prices[cheapest]
        self.images = ImageAllowance(int(left / price + 1e-9) if price else MAX_ALLOWED, cheapest)
        return path


def require_static(task: CompositeTask | None) -> None:
    """Raises ``BadRequest`` for a task with a dynamic graph and for None.

    A graph is dynamic if it depends on results. None is an app.
    """
    if task is None or inspect.iscoroutinefunction(task.invoke):
        raise BadRequest(
            "the price of a model with a dynamic graph is unknown before it runs: omit the price headers", param="model"
        )


def path_prices(quote: Quote, pinned_path: str = "") -> dict[str, float]:
    """Return the money by path, or that of ``pinned_path`` alone.

    Raises ``CostLimitExceeded`` if a price is missing.
    """
    paths = [each for each in quote.paths if each.path == pinned_path] if pinned_path else quote.paths
    prices = {each.path: float(each.usage.money) for each in paths if each.usage.money is not UNSET}
    if not prices or len(prices) < len(paths):
        raise CostLimitExceeded(
            "this plan has no prices, so it cannot enforce a cost limit: declare a currency and prices"
        )
    return prices


def choose_path(quote: Quote, limit: float, pinned_path: str = "", more: float = 0.0) -> str:
    """Return the path within ``limit`` of money: ``pinned_path`` if all fit, else the cheapest one.

    ``more`` is an amount that must also fit. Raises ``CostLimitExceeded``, also without prices, because the gateway
    could not enforce the limit.
    """
    prices = {path: money + more for path, money in path_prices(quote, pinned_path).items()}
    if max(prices.values()) <= limit:
        return pinned_path
    path = min(prices, key=lambda each: prices[each])
    if prices[path] > limit:
        raise CostLimitExceeded(
            f"the expected cost of this request is {prices[path]:.9f} {quote.currency}, above the limit {limit:.9f}: "
            "request less, or raise the limit",
            param="x-omnibus-max-cost",
        )
    return path


def _stage_work(part: ModelPart, work: Sequence[int]) -> Counter[int]:
    """Sum the work of each component's nodes, by its first node.

    Fits are per component, so its nodes count together.
    """
    first: dict[str, int] = {}
    sums = Counter[int]()
    for node, component in zip(part.nodes, part.components, strict=True):
        sums[first.setdefault(component, node)] += work[node] if work else 0
    return sums


def _amount(usage: RequestUsage) -> float:
    return usage.gpu_seconds if usage.money is UNSET else usage.money
