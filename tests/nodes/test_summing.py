"""The long run's requests: an answer with any byte of another request is a wrong one."""

import base64
import json

import numpy as np
import pytest

from omnibus.errors import BadRequest
from omnibus.executor.settings import ExecutorSettings
from tests.bench import bodies
from tests.nodes import summing
from tests.nodes.__main__ import parse_arguments
from tests.nodes.soak import SoakCase


def make_answer(number: int, image_tensor: np.ndarray, audio_tensor: np.ndarray) -> dict[str, object]:
    """The answer to request ``number`` by engines that these tensors reached."""
    level = bodies.compute_level(summing._compute_sum(audio_tensor))
    samples = np.full(summing._CODES * bodies.CODE_SAMPLES, level, np.int16)
    message = {
        "content": summing._make_text(bodies.FIRST + number, image_tensor),
        "audio": {"data": base64.b64encode(samples.tobytes()).decode()},
    }
    return {"choices": [{"message": message}]}


def spoken_request() -> tuple[int, SoakCase, int]:
    """A request for a spoken answer: its number, body, and tensor bytes."""
    requests = summing.SummedRequests(seed=1)
    number, case = next((n, case) for n in range(50) if b"modalities" in (case := requests(n)).body)
    image = json.loads(case.body)["messages"][0]["content"][1]["image_url"]["url"]
    return number, case, bodies.tensor_bytes(base64.b64decode(image.partition(",")[2]))


def test_the_right_tensors_make_the_right_answer_and_one_byte_of_either_a_wrong_one():
    number, case, size = spoken_request()
    seed = bodies.FIRST + number
    tensors = [summing._make_tensor(size, seed), summing._make_tensor(size, seed + 1)]
    case.check(make_answer(number, *tensors))

    for index in (0, 1):
        wrong = [tensor.copy() for tensor in tensors]
        wrong[index].view(np.uint8).reshape(-1)[-1] ^= 1
        with pytest.raises(AssertionError):
            case.check(make_answer(number, *wrong))


@pytest.mark.parametrize("apart", [1, 2, 9_999])
def test_tensors_of_two_requests_differ_in_each_of_their_numbers(apart: int):
    one, other = (summing._make_tensor(600 << 10, bodies.FIRST + number) for number in (0, apart))

    assert (one != other).all()


def test_a_seed_draws_the_same_requests_again_and_another_one_others():
    request_bodies = [[case.body for case in map(summing.SummedRequests(seed), range(40))] for seed in (1, 1, 2)]

    assert request_bodies[0] == request_bodies[1] != request_bodies[2]


def test_a_component_without_an_engine_is_refused_by_name():
    with pytest.raises(BadRequest, match="no summing engine for component 'dit'"):
        summing.engine("dit", ExecutorSettings())


def test_fewer_than_three_nodes_are_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        parse_arguments(["--nodes", "2"])

    assert "--nodes is at least 3" in capsys.readouterr().err
