"""Routing of a recorded graph: its path and executors, from the plan and the load."""
