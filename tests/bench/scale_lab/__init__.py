"""Lab for the data plane: many executors and gateways on one real NATS server; see ``__main__``."""
