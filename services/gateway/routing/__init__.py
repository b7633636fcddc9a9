"""Paths and executors of a recorded graph, by the plan and the load."""
