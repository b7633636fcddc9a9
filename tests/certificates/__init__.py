"""A certificate for localhost and 127.0.0.1, the authority that signed it, and one that did not; valid until 2126.

Besides, certificates for nodes ``a`` and ``b``, and their authority. The authorities' keys were thrown away: nothing
else can be signed by them.
"""

from pathlib import Path

DIRECTORY = Path(__file__).parent
CA, OTHER_CA = DIRECTORY / "ca.crt", DIRECTORY / "other-ca.crt"
CERTIFICATE, KEY = DIRECTORY / "tls.crt", DIRECTORY / "tls.key"


def node_files(node: str) -> tuple[str, str, str]:
    """The authority of nodes ``a`` and ``b``, and the certificate and key of ``node``."""
    return str(DIRECTORY / "nodes-ca.crt"), str(DIRECTORY / f"node-{node}.crt"), str(DIRECTORY / f"node-{node}.key")
