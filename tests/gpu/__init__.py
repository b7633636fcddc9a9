"""What every engine path does on this machine's GPU, against the plain libraries: ``python -m tests.gpu``."""
