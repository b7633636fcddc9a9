"""Model families: load one component of a model alone, prepare its inputs and run it.

Services program against ``contract``, ``families`` finds the architecture of a checkpoint, and ``tiny`` builds small
random checkpoints. Importing this package alone does not import torch.
"""
