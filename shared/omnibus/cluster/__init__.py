"""State of the cluster: planned by its plans, and reported by its processes."""
