"""Contents of a checkpoint, without loading it: families load their components as usual, but no weights are read.

``python -m omnibus_models.examine DIR`` says it as ``omnibus.checkpoints.report.Report``.
"""
