"""``/v1/batches``: many requests in a file, answered at leisure by whichever gateway has time, as jobs in the store."""
