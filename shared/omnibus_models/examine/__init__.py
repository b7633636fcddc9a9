"""Contents of a checkpoint, without loading its weights.

Families load their components as usual, but no weights are read. ``python -m omnibus_models.examine DIR`` prints a
``omnibus.checkpoints.report.Report``.
"""
