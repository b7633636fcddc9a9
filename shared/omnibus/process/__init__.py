"""Operating-system processes: start, supervision, restarts, and end with the parent."""
