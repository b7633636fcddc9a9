"""One client request: its segments, inputs, admission, records and metrics."""
