"""``/v1/batches``: files of requests that any gateway with spare capacity runs, as jobs in the store."""
