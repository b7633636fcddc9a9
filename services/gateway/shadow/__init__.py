"""Candidates in the shadow: finished requests run again, on what serves and on what is tried, and are compared."""
