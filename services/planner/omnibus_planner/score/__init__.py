"""Scores of plans by measurements after their deployment.

The modules:

    replay.py   requests since a plan is in force, simulated
    scoring.py  measured requests and executors, and their comparison with the promise
    scorer.py   the whole, repeatedly while a plan serves
"""
