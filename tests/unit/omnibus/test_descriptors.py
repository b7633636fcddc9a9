"""A server raises its file limit to the kernel's maximum."""

import multiprocessing
import resource
from multiprocessing.connection import Connection

from omnibus.process.tuning import raise_descriptor_limit


def _raise_from(soft: int, answers: Connection) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    answers.send((raise_descriptor_limit(), hard, resource.getrlimit(resource.RLIMIT_NOFILE)))


def test_the_usual_limit_is_raised_to_what_the_kernel_allows():
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_raise_from, args=(256, there))
    child.start()
    assert here.poll(30)
    new_limit, hard, now = here.recv()
    child.join(30)

    assert new_limit == hard
    assert now == (hard, hard)
