"""The six services. Each runs in place: ``python -m services.<name>``."""
