"""Files of clients and batches, in a directory or an S3 bucket."""
