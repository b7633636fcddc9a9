"""Shadow traffic: finished requests run again on the serving version and on the candidate, and are compared."""
