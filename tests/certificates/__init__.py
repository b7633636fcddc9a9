"""A certificate for localhost and 127.0.0.1, the authority that signed it, and one that did not; valid until 2126.

The authority's key was thrown away: nothing else can be signed by it.
"""

from pathlib import Path

DIRECTORY = Path(__file__).parent
CA, OTHER_CA = DIRECTORY / "ca.crt", DIRECTORY / "other-ca.crt"
CERTIFICATE, KEY = DIRECTORY / "tls.crt", DIRECTORY / "tls.key"
