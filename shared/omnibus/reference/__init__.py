"""Descriptions of settings and tasks from their definitions. ``omnibus settings`` and pages of ``docs`` show them."""
