"""Scores of plans by measurements after their deployment.

The modules:

    measurement.py  requests and executors since a plan is in force
    replay.py       the same requests, simulated
    scoring.py      comparison of promised and measured figures
    scorer.py       the whole, repeatedly while a plan serves
"""
