"""Model families: how to load one component of a model alone, prepare its inputs and run it.

``contract`` is what services program against, ``families`` finds the architecture of a checkpoint,
``tiny`` builds small random checkpoints. Importing this package alone does not import torch.
"""
