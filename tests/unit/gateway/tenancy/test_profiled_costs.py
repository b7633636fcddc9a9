"""A request's expected cost from its model's profile, before any reports."""

import pytest

from omnibus.profile import ModelProfile, OptionProfile, RoleCost
from omnibus_gateway.tenancy.cost_model import DEFAULT_TOKEN_SECONDS, RequestCost, RequestCostModel
from tests.unit.gateway.test_several_models import TYPE, make_nodes, make_router

MODEL = "org/a"
#: Most requests of the type go along E>L. A row of the type counts before one of any type.
ENCODER = OptionProfile(("vision",), work=(RoleCost(("vision",), 0.2),))
LANGUAGE = OptionProfile(("thinker",), gpus=2, work=(RoleCost(("thinker",), 9.0), RoleCost(("thinker",), 0.3, TYPE)))
WORK = (300.0, 100.0)  # tokens of each node


def expect_cost(**options: OptionProfile) -> RequestCost:
    """Return the expected cost of a request to an encoder and a thinker. Without ``options`` there is no profile."""
    new_router = make_router()
    costs = RequestCostModel(new_router)
    if options:
        costs.profiles = {MODEL: ModelProfile(MODEL, "f", ("vision", "thinker"), {}, options)}
    return costs.expected_cost(new_router.assign(make_nodes("see", "think-a"), MODEL), WORK)


def test_the_profile_of_a_model_says_what_its_requests_cost():
    cost = expect_cost(E=ENCODER, L=LANGUAGE)

    assert cost.seconds == pytest.approx(0.2 + 2 * 0.3)
    assert cost.nodes == pytest.approx((0.75 * 0.8, 0.25 * 0.8))  # by their tokens


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"E": ENCODER},
        {"E": ENCODER, "L": OptionProfile(("thinker",))},
        {"E": ENCODER, "L": OptionProfile(("vision", "thinker"), work=(RoleCost(("vision", "thinker"), 1.0),))},
    ],
    ids=["no profile", "no such option", "an option that was not measured", "an option in another role"],
)
def test_what_a_profile_does_not_say_is_counted_in_tokens(options: dict[str, OptionProfile]):
    cost = expect_cost(**options)

    assert cost.seconds == pytest.approx(sum(WORK) * DEFAULT_TOKEN_SECONDS)
    assert cost.nodes == pytest.approx([tokens * DEFAULT_TOKEN_SECONDS for tokens in WORK])
