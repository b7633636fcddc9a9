"""Planning chooses the best deployment of the measured options. The paper's name for it does not matter."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from omnibus.profile import CostLine, Point, TypeProfile
from omnibus_planner.declared.planned_spec import DeclaredNode, GpuType
from omnibus_planner.optimize.load import ModelLoad
from omnibus_planner.solve.problem import Infeasible
from tests.unit.planner.optimize.testbed import (
    EIGHT,
    EL,
    SEEN,
    SPLIT,
    TEXT,
    E,
    L,
    count_replicas,
    gpus_of,
    make_goals,
    make_option,
    make_planner,
    make_profile,
    make_split_profile,
    make_types,
    read_rates,
)


def test_the_most_requests_are_served_within_the_gpus():
    # E>L takes .2 GPU-seconds for an image and .3 for all: 8 / (.6 * .2 + .3) = 19 req/s without whole numbers.
    result = make_planner().plan()

    assert gpus_of(result.models["q"]) == 8
    assert 18 < result.capacity["q"] < 8 / (0.6 * 0.2 + 0.3)
    assert result.rate == result.capacity


def test_path_rates_add_up_to_the_rate_of_each_request_type():
    result = make_planner().plan()

    for kind, share in ((SEEN, 0.6), (TEXT, 0.4)):
        assert sum(read_rates(result.models["q"])[kind].values()) == pytest.approx(share * result.rate["q"])


def test_one_executor_for_all_is_a_legal_answer():
    together = make_option(SEEN, (SEEN, 0.35, SEEN), ("thinker", 0.2, ""), service="llm", gpu="H100")

    model_plan = make_planner(make_profile({"E": E, "L": L, "EL": together})).plan().models["q"]

    assert count_replicas(model_plan) == {"EL": 8}
    assert read_rates(model_plan)[SEEN].keys() == read_rates(model_plan)[TEXT].keys() == {"EL"}


def test_the_fewest_gpus_for_a_rate_are_a_goal():
    few = make_planner(goal="gpus", rate=5.0, headroom=0.0).plan()
    spare = make_planner(goal="gpus", rate=5.0, headroom=0.5).plan()

    assert gpus_of(few.models["q"]) == 3  # 5 * (.6 * .2 + .3) = 2.1
    assert gpus_of(spare.models["q"]) == 4  # 7.5 * .42 = 3.15
    assert few.capacity["q"] >= 5 - 1e-5
    assert few.rate["q"] == 5


def test_only_the_options_that_were_named_are_used():
    model_plan = make_planner(options=("E", "L")).plan().models["q"]

    assert set(count_replicas(model_plan)) == {"E", "L"}


# Encode, prefill and decode are components like all others


@pytest.mark.parametrize(
    ("slower", "gpus", "replica_counts"),
    [
        # Decoding slows down other work, so decode is separate; encode and prefill help each other.
        ({"ED": 1.5, "PD": 1.5, "EPD": 1.6, "EP": 0.9}, 67, {"EP": 27, "D": 40}),
        ({"ED": 1.5, "PD": 0.9, "EPD": 1.5, "EP": 1.5}, 65, {"E": 20, "PD": 45}),
        ({"ED": 1.5, "PD": 1.5, "EPD": 1.5, "EP": 1.5}, 70, {"E": 20, "P": 10, "D": 40}),
        ({"ED": 1.5, "PD": 1.5, "EPD": 0.8, "EP": 1.5}, 14, {"EPD": 14}),
        # An encoder fills what decoding leaves of a GPU; P prefills in between.
        ({"ED": 0.5, "PD": 1.5, "EPD": 1.5, "EP": 1.5}, 8, {"ED": 6, "P": 2}),
    ],
)
def test_prefill_and_decode_are_put_together_as_measured(
    slower: dict[str, float], gpus: int, replica_counts: dict[str, int]
):
    model_plan = (
        make_planner(make_split_profile(**slower), {"H100": GpuType(gpus)}, declaration=SPLIT).plan().models["q"]
    )

    assert count_replicas(model_plan) == replica_counts


def test_a_path_that_visits_an_option_twice_names_it_for_both_components():
    result = make_planner(make_split_profile(ED=0.5, PD=1.5, EPD=1.5, EP=1.5), declaration=SPLIT).plan()

    [path] = result.models["q"].types["vision+prefill+decode"]
    assert (path.name, path.options) == ("ED>P", {"vision": "ED", "prefill": "P", "decode": "ED"})
    assert path.rate == pytest.approx(result.capacity["q"]) == pytest.approx(20.0)


def test_every_executor_of_a_part_of_a_model_is_told_its_service():
    model_plan = (
        make_planner(make_split_profile(ED=1.5, PD=1.5, EPD=1.5, EP=1.5), {"H100": GpuType(70)}, declaration=SPLIT)
        .plan()
        .models["q"]
    )

    assert {name: each.service for name, each in model_plan.options.items()} == {"E": "encoder", "P": "llm", "D": "llm"}


# GPUs, prices, nodes


def test_each_option_takes_gpus_of_its_own_type():
    slow = make_option("thinker", ("thinker", 0.6), service="llm", gpu="L40")
    model_plan = (
        make_planner(make_profile({"E": E, "L": L, "L@L40": slow}), {"H100": GpuType(2), "L40": GpuType(3)})
        .plan()
        .models["q"]
    )

    assert count_replicas(model_plan)["L_L40"] == 3
    assert sum(count for name, count in count_replicas(model_plan).items() if name in ("E", "L")) == 2


def test_the_price_decides_which_gpus_serve_a_rate():
    slow = make_option("thinker", ("thinker", 0.6), service="llm", gpu="L40")
    model_profile = make_profile({"E": E, "L": L, "L@L40": slow})

    def plan_replicas(price: float) -> dict[str, int]:
        gpus = {"H100": GpuType(8, price=4.0), "L40": GpuType(8, price=price)}
        return count_replicas(make_planner(model_profile, gpus, goal="gpus", rate=3.0, headroom=0.0).plan().models["q"])

    assert plan_replicas(price=1.0) == {"E": 1, "L_L40": 2}
    assert plan_replicas(price=3.0) == {"E": 1, "L": 1}


def test_executors_on_cpus_take_places_and_no_gpu():
    encoder = make_option("vision", ("vision", 0.4, SEEN), service="encoder", gpu="cpu")

    model_plan = (
        make_planner(make_profile({"E": encoder, "L": L}), {"cpu": GpuType(4), "H100": GpuType(4)}).plan().models["q"]
    )

    assert model_plan.options["E"].gpus == 0
    assert model_plan.options["L"].gpus == 1
    assert count_replicas(model_plan)["E"] <= 4


def test_an_option_that_does_not_say_its_gpu_takes_the_only_type():
    anywhere = make_option("thinker", ("thinker", 0.3), service="llm")

    model_plan = make_planner(make_profile({"E": E, "L": anywhere})).plan().models["q"]

    assert model_plan.options["L"].gpus == 1


def test_a_replica_does_not_span_two_nodes():
    wide = make_option("thinker", ("thinker", 0.05), service="llm", gpu="H100", gpus=2)
    nodes = {name: DeclaredNode(3, "H100") for name in ("n1", "n2")}
    model_profile = make_profile({"E": E, "L2": wide})

    free = make_planner(model_profile, {"H100": GpuType(6)}, options=("E", "L2"), mix={TEXT: 1.0}).plan()
    packed_result = make_planner(
        model_profile, {"H100": GpuType(6)}, nodes, options=("E", "L2"), mix={TEXT: 1.0}
    ).plan()

    assert count_replicas(free.models["q"])["L2"] == count_replicas(packed_result.models["q"])["L2"] == 2
    assert make_planner(make_profile({"E": E, "L3": L}), {}, nodes).plan().capacity["q"] > 0


def test_nodes_alone_say_how_many_gpus_there_are():
    result = make_planner(gpus={}, nodes={"n1": DeclaredNode(4, "H100"), "n2": DeclaredNode(4, "H100")}).plan()

    assert gpus_of(result.models["q"]) == 8


# Mixes


def test_one_deployment_serves_each_of_several_mixes():
    many, few = {SEEN: 1.0}, {TEXT: 1.0}
    plain = make_planner(goal="gpus", rate=8.0, headroom=0.0, mix=few)
    robust = make_planner(goal="gpus", rate=8.0, headroom=0.0, mix=few, mixes=(many,))

    assert robust.plan().capacity["q"] >= 8 - 1e-5
    for shares in (many, few):
        assert robust.capacity(robust.plan().models, {"q": ModelLoad(8, shares)})["q"] >= 8 - 1e-5
    assert plain.capacity(plain.plan().models, {"q": ModelLoad(8, many)})["q"] < 8


def test_a_mix_goes_before_the_profile_and_a_load_before_the_mix():
    by_profile, by_mix = make_planner().plan(), make_planner(mix={SEEN: 1.0}).plan()
    by_load = make_planner(mix={SEEN: 1.0}).plan({"q": ModelLoad(1.0, {TEXT: 1.0})})

    assert count_replicas(by_profile.models["q"])["E"] == 2
    assert count_replicas(by_mix.models["q"])["E"] == 3
    assert count_replicas(by_load.models["q"]).get("E", 0) <= 1


# Sizes of requests


def test_larger_images_need_more_encoders():
    sized_types = {
        SEEN: TypeProfile(("vision", "thinker"), 0.6, {"image_tokens": 500.0, "prompt_tokens": 600.0}),
        TEXT: TypeProfile(("thinker",), 0.4, {"prompt_tokens": 100.0}),
    }
    lines = {"vision": CostLine(0.0, {"image_tokens": 4e-4}), "thinker": CostLine(0.25, {"prompt_tokens": 1e-4})}
    model_planner = make_planner(make_profile({"E": E, "L": L}, types=sized_types, lines=lines), {"H100": GpuType(24)})

    usual = model_planner.plan({"q": ModelLoad(1.0, {SEEN: 0.6, TEXT: 0.4})})
    large = model_planner.plan({"q": ModelLoad(1.0, {SEEN: 0.6, TEXT: 0.4}, {SEEN: {"image_tokens": 2000.0}})})

    assert count_replicas(usual.models["q"]) == count_replicas(model_planner.plan().models["q"]) == {"E": 7, "L": 17}
    assert count_replicas(large.models["q"]) == {"E": 15, "L": 9}  # .8 s for each image now, four times as long
    assert large.capacity["q"] < usual.capacity["q"]


# Tails


CURVE = tuple(
    Point(n, rate, done, first_token=done / 2) for n, rate, done in ((1, 1.0, 1.0), (4, 2.0, 2.0), (8, 3.2, 6.0))
)


def test_a_goal_for_the_tail_takes_more_gpus():
    model_profile = make_profile(
        {"EL": make_option(SEEN, (SEEN, 0.3, SEEN), ("thinker", 0.3, ""), gpu="H100", curve=CURVE)}
    )

    def count_gpus(**seconds: float) -> int:
        model_planner = make_planner(
            model_profile, {"H100": GpuType(64)}, goal="gpus", rate=16.0, headroom=0.0, goals=make_goals(**seconds)
        )
        return gpus_of(model_planner.plan().models["q"])

    assert count_gpus() == 5  # 16 * .3 = 4.8
    assert count_gpus(done=6.0) == 5  # the largest load keeps it
    # Two requests at a time would miss it: 2.0 of 3.2 req/s with four at a time, and 1.0 with one.
    assert count_gpus(first_token=1.0) == 8
    assert count_gpus(first_token=0.5) == 16


def test_a_goal_that_no_load_keeps_is_told_with_what_was_measured():
    model_profile = make_profile(
        {"EL": make_option(SEEN, (SEEN, 0.3, SEEN), ("thinker", 0.3, ""), gpu="H100", curve=CURVE)}
    )

    with pytest.raises(Infeasible, match=r"model q: nothing runs vision within the planned goals \(EL: with 1 request at a time "
                       r"first_token is 0.5 s, 0.1 s are left for it\)"):  # fmt: skip
        make_planner(model_profile, goals=make_goals(first_token=0.1)).plan()


def test_the_first_token_has_to_wait_for_encoders_and_llm_together():
    encoder = make_option("vision", ("vision", 0.2, SEEN), gpu="H100",
                     curve=(Point(1, 1.0, 0.2), Point(8, 5.0, 0.9)))  # fmt: skip
    llm = make_option("thinker", ("thinker", 0.3, ""), gpu="H100",
                 curve=(Point(1, 1.0, 9.0, first_token=0.3), Point(8, 3.3, 9.0, first_token=0.5)))  # fmt: skip
    model_profile = make_profile({"E": encoder, "L": llm})

    free = make_planner(model_profile, goals=make_goals(first_token=3.0)).plan().capacity["q"]
    tight = make_planner(model_profile, goals=make_goals(first_token=1.0)).plan().capacity["q"]

    assert tight < free  # .4 s are left for the encoder, which keeps them with one request at a time alone


def test_options_without_a_measured_load_are_given_the_usual_part_of_their_time():
    bound = make_planner(goals=make_goals(done=5.0)).plan()

    assert bound.capacity["q"] < make_planner().plan().capacity["q"]
    assert bound.explain["planned"]["models"]["q"]["no_load_measured"] == ["E", "L", "EL"]


# Cells


def test_cells_serve_whole_requests_and_are_as_many_as_fit():
    result = make_planner(cells=4).plan()
    explanation = result.explain["planned"]["models"]["q"]

    assert sum(int(size) * count for size, count in explanation["cells"].items()) <= 8
    assert 0 < result.capacity["q"] <= make_planner().plan().capacity["q"] + 1e-9
    for kind, share in ((SEEN, 0.6), (TEXT, 0.4)):
        assert sum(read_rates(result.models["q"])[kind].values()) == pytest.approx(share * result.capacity["q"])


def test_the_fewest_cells_serve_a_rate():
    result = make_planner(gpus={"H100": GpuType(32)}, cells=2, goal="gpus", rate=10.0, headroom=0.0).plan()

    assert result.capacity["q"] >= 10 - 1e-6
    assert gpus_of(result.models["q"]) % 2 == 0
    assert gpus_of(result.models["q"]) > gpus_of(make_planner(goal="gpus", rate=10.0, headroom=0.0).plan().models["q"])


def test_a_rate_that_no_cells_serve_within_the_gpus_is_told():
    with pytest.raises(Infeasible, match=r"8 GPUs of type H100 cannot serve 100 req/s in cells: it takes \d+"):
        make_planner(cells=2, goal="gpus", rate=100.0, headroom=0.0).plan()


# Churn


def test_what_runs_goes_on_running_among_plans_of_as_many_gpus():
    model_planner = make_planner(make_profile({"E": E, "L": L, "EL": EL}), goal="gpus", rate=4.0, headroom=0.0)
    first = model_planner.plan()

    again = model_planner.plan({"q": ModelLoad(4.2, {SEEN: 0.6, TEXT: 0.4})}, first.models)

    assert all(
        count_replicas(again.models["q"]).get(name, 0) >= count
        for name, count in count_replicas(first.models["q"]).items()
    )


def test_a_load_beyond_the_gpus_gets_all_that_they_serve():
    result = make_planner(goal="gpus", rate=1.0).plan({"q": ModelLoad(1000.0, {SEEN: 0.6, TEXT: 0.4})})

    assert gpus_of(result.models["q"]) == 8
    assert result.capacity["q"] == pytest.approx(make_planner(gpus=EIGHT).plan().capacity["q"])
    assert "the GPUs do not serve the measured 1000 req/s" in result.explain["planned"]["models"]["q"]["reason"]


def test_a_model_that_nobody_asks_keeps_an_executor_for_each_component():
    model_plan = make_planner(goal="gpus", rate=10.0).plan({"q": ModelLoad(0.0)}).models["q"]

    assert {part for each in model_plan.options.values() for part in each.components} == {"vision", "thinker"}
    assert gpus_of(model_plan) == 1


def test_the_same_question_has_the_same_answer():
    assert make_planner().plan().models == make_planner().plan().models


def test_all_sets_of_components_are_tried_when_asked_for():
    model_profile = make_profile({"E": E, "L": L})

    only, every = make_planner(model_profile).plan(), make_planner(model_profile, options="all").plan()

    assert every.models["q"].options["EL"].service == "llm"  # nothing says that running together takes longer
    assert only.capacity["q"] < every.capacity["q"] == pytest.approx(8 / (0.6 * 0.2 + 0.3))
    assert every.explain["planned"]["models"]["q"]["estimated"] == ["EL"]


def test_what_was_not_measured_together_slows_down_as_what_was():
    # Both encoders together with a thinker were not measured; one of them was, and takes a third more.
    parts = ("vision", "audio", "thinker")
    alone = {part: make_option(part, (part, 0.2), gpu="H100") for part in parts}
    model_profile = make_profile(
        {**alone, "VT": make_option("vision+thinker", ("vision+thinker", 0.5333), gpu="H100")},
        family="qwen2_5_omni", components=parts, types=make_types(vision_audio_thinker=1.0),
        order=(("vision", "thinker"), ("audio", "thinker")),
    )  # fmt: skip
    model_planner = make_planner(
        model_profile, {"H100": GpuType(6)}, declaration={"family": "qwen2_5_omni", "components": parts}, options="all"
    )

    result = model_planner.plan()

    assert result.capacity["q"] == pytest.approx(10.0)  # two encoders without the thinker count as free
    assert not any({"vision", "thinker"} <= set(each.components) for each in result.models["q"].options.values())


# Settings of engines


FP8 = {"quantization": "fp8", "speculative_tokens": 4}
FASTER = msgspec.structs.replace(
    make_option("thinker", ("thinker", 0.1, "", 0.5), service="llm", gpu="H100"),
    engine="omnibus_engines:vllm",
    checkpoint="/q-fp8",
    dtype="bfloat16",
    vllm=FP8,
)


def test_an_option_is_deployed_with_the_settings_that_it_was_measured_with():
    model_plan = make_planner(make_profile({"E": E, "L": L, "L-fp8": FASTER})).plan().models["q"]

    assert count_replicas(model_plan)["L-fp8"] > 0
    fp8_option = model_plan.options["L-fp8"]
    assert (fp8_option.checkpoint, fp8_option.dtype, fp8_option.vllm) == ("/q-fp8", "bfloat16", FP8)
    assert model_plan.options["E"].vllm is UNSET


@pytest.mark.parametrize(
    ("changes", "settings"),
    [({}, None), ({"checkpoint": "", "dtype": ""}, FP8)],
)
def test_options_are_only_put_together_of_what_has_the_same_settings(changes: dict[str, str], settings: Any):
    model_profile = make_profile({"E": E, "L": msgspec.structs.replace(FASTER, **changes)})

    ready = make_planner(model_profile, options="all").inputs["q"]

    together = [each for each in ready.options.values() if len(each.components) == 2]
    assert [each.vllm for each in together] == ([] if settings is None else [settings])
