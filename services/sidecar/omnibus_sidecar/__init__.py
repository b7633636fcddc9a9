"""The sidecar: the node's tensor arena and its ledger of leases."""
