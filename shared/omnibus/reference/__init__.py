"""Descriptions of settings and tasks, read from their definitions: for ``omnibus settings`` and pages of ``docs``."""
