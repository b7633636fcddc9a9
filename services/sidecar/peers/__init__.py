"""Pulls between nodes: the sockets to other sidecars, in a thread of their own, and what they mean for the ledger.

``plane`` puts the parts together. ``incoming`` holds what this node pulls, ``outgoing`` what others pull from it: both
belong to the loop of the sidecar, as the ledger does, but for the check of a request, which takes a pin of its block in
the other thread. ``dialler`` and ``listener`` hold the sockets and move the bytes, on the loop of ``thread``; ``lanes``
and ``ucx`` do that for large pulls over UCX, where it is configured.
"""
