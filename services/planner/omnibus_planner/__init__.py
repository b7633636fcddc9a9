"""The planner: declared models to a plan epoch in the store."""
