"""What a checkpoint is made of, without loading it: families load their components as ever, and nothing is read.

``python -m omnibus_models.examine DIR`` says it as ``omnibus.checkpoints.report.Report``.
"""
