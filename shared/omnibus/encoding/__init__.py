"""From samples and pixels to files: what gateways send, and apps may want to send as well.

``video`` and ``audio`` go through PyAV, ``image`` through Pillow; both are imported when they are first used. Reading
files is nothing that is done here.
"""
