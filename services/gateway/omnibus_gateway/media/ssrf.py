"""Addresses that the fetcher may connect to. Data only: nothing here resolves or connects."""

from ipaddress import IPv4Address, IPv6Address, ip_network

Address = IPv4Address | IPv6Address

# Reachable only with ``allow_private``, for development: the machine itself and private networks.
_PRIVATE_NETWORKS = tuple(
    ip_network(block)
    for block in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")
)

# Never reachable. Sources: the IANA special-purpose address registries for IPv4 and IPv6. The list is explicit because
# ``ipaddress.is_global`` changed between patch releases of Python 3.11.
_BLOCKED_NETWORKS = tuple(
    ip_network(block)
    for block in (
        "0.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; cloud metadata of one provider
        "168.63.129.16/32",  # a cloud's host service on a public address
        "169.254.0.0/16",  # link-local: most cloud metadata
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "2001::/23",  # Teredo, ORCHID and other protocol assignments
        "2001:db8::/32",
        "2002::/16",  # 6to4 embeds an IPv4 address
        "3fff::/20",
        "fd00:ec2::/32",  # cloud metadata inside the private range
    )
)

# All other addresses are mapped (::ffff:0:0/96), NAT64 (64:ff9b::/96), link-local, multicast or unassigned.
_PUBLIC_V6 = ip_network("2000::/3")

_LOCAL_NAMES = frozenset({"localhost", "metadata", "instance-data", "metadata.goog"})
_LOCAL_SUFFIXES = (".localhost", ".local", ".internal", ".svc", ".home.arpa")


def is_allowed(address: Address, *, allow_private: bool = False) -> bool:
    """Return True if a connection to ``address`` may be opened."""
    if any(address in block for block in _BLOCKED_NETWORKS):
        return False
    if any(address in block for block in _PRIVATE_NETWORKS):
        return allow_private
    return address.version == 4 or address in _PUBLIC_V6


def is_local_name(host: str) -> bool:
    """Return True for names of this machine, cluster or metadata services.

    ``host`` must be in lower case.
    """
    return host in _LOCAL_NAMES or host.endswith(_LOCAL_SUFFIXES)
