"""``omnibus whatif``: a plan and its requests in virtual time, for people.

question.py     what is asked: plan, GPUs, requests, rate
deployment.py   the plan: the current one, one of a file, or one that is made for other GPUs
traffic.py      the requests: a trace, a workload, what was recorded (records.py), or the mix of the profile
table.py        the answer as text
"""
