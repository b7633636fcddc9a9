"""Certificates for localhost and 127.0.0.1, and their authorities; valid until 2126.

One authority signed the certificate, and one did not. The directory also contains certificates for nodes ``a`` and
``b``, and their authority. The authorities' keys were discarded, so they cannot sign anything else.
"""

from pathlib import Path

DIRECTORY = Path(__file__).parent
CA, OTHER_CA = DIRECTORY / "ca.crt", DIRECTORY / "other-ca.crt"
CERTIFICATE, KEY = DIRECTORY / "tls.crt", DIRECTORY / "tls.key"


def node_files(node: str) -> tuple[str, str, str]:
    """Authority of nodes ``a`` and ``b``, and certificate and key of ``node``."""
    return str(DIRECTORY / "nodes-ca.crt"), str(DIRECTORY / f"node-{node}.crt"), str(DIRECTORY / f"node-{node}.key")
