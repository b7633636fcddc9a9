"""Pipelines that diffusers has in blocks: which run in components, and how.

``python -m tests.auto_pipelines [NAME ...]`` tries a small copy of each pipeline and prints a row for it.
"""
