"""Tensors of one node: they are written once into shared memory and travel as handles.

    handle     the record that names a tensor; the only thing that the bus carries
    protocol   frames between a client and its node's sidecar
    allocator  which bytes of the arena are free
    ledger     who holds which block and until when
    arena      the mapped memory itself
    link       one connection to the sidecar
    client     put, view, release: what services use

Import from the rooms: this package opens none of them by itself.
"""
