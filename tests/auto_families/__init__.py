"""Language models of transformers without code for their class: which run, and how.

``python -m tests.auto_families [TYPE ...]`` tries a small copy of each class and prints a row for it.
"""
