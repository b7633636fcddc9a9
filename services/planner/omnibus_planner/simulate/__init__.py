"""Whole plans in virtual time: executors with queues and batches, paths, transfers, rejections.

    agenda.py      events in virtual time
    calibrate.py   from profiles of models to devices of the ``sim`` engine
    saturate.py    the highest rate of one replica for a mix of roles
    executor.py    one executor: the device and the lanes of simulated executors
    cluster.py     executors of all models of a plan, placed on nodes; the choice of executors for a request
    executors.py   the executors of one request; observed.py: its times
    arrivals.py    requests: at random times, or recorded
    run.py         from a plan and its requests to latencies, throughput and bottleneck; outcome.py: the figures

No clock, no I/O, and no randomness except from a seed: the same input has the same result.
"""
