"""``omnibus whatif``: a plan and its requests in virtual time, for people.

The modules:

    question.py     the question: plan, GPUs, requests, rate
    deployment.py   the plan: the current one, one of a file, or one that is made for other GPUs
    traffic.py      the requests: a trace, a workload, records (records.py), or the mix of the profile
    table.py        the answer as text
"""
