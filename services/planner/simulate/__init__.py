"""Whole plans in virtual time: executors with their queues and batches, paths with their shares, transfers, refusals.

    agenda.py      what happens when, in virtual seconds
    calibrate.py   profiles of models to devices of the ``sim`` engine
    saturate.py    the most that one replica serves of a mix of roles
    executor.py    one executor: the device and the lanes that simulated executors have
    cluster.py     executors of all models of a plan, placed on nodes; which of them a request gets
    request.py     one request on its way through executors
    arrivals.py    requests: at random times, or as they came
    run.py         a plan and its requests to latencies, throughput, and what breaks first; outcome.py: the figures

No clock, no I/O, no chance but that of a seed: the same question has the same answer.
"""
