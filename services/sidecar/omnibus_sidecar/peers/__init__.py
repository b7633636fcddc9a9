"""Pulls between nodes: sockets to other sidecars, in a separate thread, and their effects on the ledger.

``plane`` assembles the parts. ``incoming`` manages what this node pulls, and ``outgoing`` what others pull from it.
Both run on the loop of the sidecar, as the ledger does, with one exception. The check of a request runs in the other
thread, where it pins the block. ``dialler`` and ``listener`` own the sockets and move the bytes, on the loop of
``thread``. ``lanes`` and ``ucx`` do that for large pulls over UCX, if it is configured.
"""
