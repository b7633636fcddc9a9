"""Tensors of one node: written once into shared memory, and sent as handles.

    handle     the record that identifies a tensor; the bus carries only handles
    protocol   frames between a client and its node's sidecar
    allocator  the free bytes of the arena
    ledger     the holders of each block, and its lifetime
    arena      the mapped memory itself
    link       one connection to the sidecar
    client     put, view, release: the interface for services

Import from the modules: this package imports none of them.
"""
