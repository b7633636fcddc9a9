"""Scores of plans by what was measured after their deployment.

measurement.py  requests and executors since a plan is in force
replay.py       the same requests, simulated
scoring.py      promised and measured beside each other
scorer.py       all of it, again and again while a plan serves
"""
