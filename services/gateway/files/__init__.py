"""Files that clients upload, and what batches write: in a directory, or in an object storage that speaks S3."""
