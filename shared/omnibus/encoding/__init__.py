"""Encoders from samples and pixels to files, for gateways and for apps.

``video`` and ``audio`` use PyAV, ``image`` uses Pillow. Both are imported on first use. This package does not read
files.
"""
