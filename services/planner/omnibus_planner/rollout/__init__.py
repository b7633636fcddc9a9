"""Steps between plan epochs within the available GPUs, and rollbacks."""
