"""The form of media URLs, and hosts rejected before any lookup."""

from ipaddress import ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus.errors import BadRequest
from omnibus_gateway.media import fetcher
from omnibus_gateway.media.fetcher import UrlRules, UrlTarget

PRODUCTION = UrlRules()
DEVELOPMENT = UrlRules(allow_http=True, allow_private=True, ports=None)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://example.com/a.png", UrlTarget("https", "example.com", 443, "/a.png")),
        ("HTTPS://Example.COM", UrlTarget("https", "example.com", 443, "/")),
        ("https://example.com./a?b=c#d", UrlTarget("https", "example.com", 443, "/a?b=c")),
        ("https://example.com?b=c", UrlTarget("https", "example.com", 443, "/?b=c")),
        ("https://example.com:80/", UrlTarget("https", "example.com", 80, "/")),
        ("https://8.8.8.8/x", UrlTarget("https", "8.8.8.8", 443, "/x")),
        ("https://[2606:4700::1111]/x", UrlTarget("https", "2606:4700::1111", 443, "/x")),
        ("https://a_b.example.com/é%20?q=ü", UrlTarget("https", "a_b.example.com", 443, "/%C3%A9%20?q=%C3%BC")),
        ("https://example.com/a@b", UrlTarget("https", "example.com", 443, "/a@b")),
    ],
)
def test_a_public_https_url_is_parsed(url: str, target: UrlTarget) -> None:
    assert fetcher.parse_url(url, PRODUCTION) == target


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://example.com/a.png", "Plain http"),
        ("file:///etc/passwd", "Only https and data"),
        ("ftp://example.com/a", "Only https and data"),
        ("gopher://example.com/a", "Only https and data"),
        ("//example.com/a", "Only https and data"),
        ("example.com/a", "Only https and data"),
        ("", "Only https and data"),
        (" https://example.com/", "Only https and data"),
        ("https:/example.com/", "Only https and data"),
        ("https://user@example.com/", "user name"),
        ("https://user:word@example.com/", "user name"),
        ("https://example.com@127.0.0.1/", "user name"),
        ("https://example.com\\@127.0.0.1/", "user name"),
        ("https://127.0.0.1\\.example.com/", "malformed"),
        ("https://example.com/a\\b", "malformed"),
        ("https://exa mple.com/", "malformed"),
        ("https://example.com/a b", "malformed"),
        ("https://example.com/\r\nHost: internal", "malformed"),
        ("https://example.com/\ta", "malformed"),
        ("https://example.com/\x00", "malformed"),
        ("https://exämple.com/", "malformed"),
        ("https://１２７.0.0.1/", "malformed"),
        ("https://127。0。0。1/", "malformed"),
        ("https://%31%32%37.0.0.1/", "malformed"),
        ("https:///etc/passwd", "malformed"),
        ("https://[fe80::1%25eth0]/", "malformed"),
        ("https://example.com:/", "malformed"),
        ("https://example.com:22/", "port"),
        ("https://example.com:0/", "port"),
        ("https://example.com:99999/", "port"),
        ("https://a..b/", "not a valid name"),
        ("https://./", "not a valid name"),
        ("https://" + "a" * 64 + ".com/", "not a valid name"),
        ("https://[::1::2]/", "not a valid name"),
        ("https://[127.0.0.1/", "malformed"),
        ("https://example.com/" + "a" * fetcher.MAX_URL_CHARS, "longer than"),
    ],
)
def test_an_unusual_url_is_refused(url: str, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason) as caught:
        fetcher.parse_url(url, PRODUCTION, "messages[0].content[0].image_url.url")

    assert caught.value.param == "messages[0].content[0].image_url.url"
    assert "passwd" not in caught.value.message


@pytest.mark.parametrize(
    "host",
    [
        "2130706433",  # 127.0.0.1 as one number
        "0177.0.0.1",  # octal
        "0x7f.0.0.1",
        "0x7f000001",
        "127.1",
        "127.0.1",
        "127.000.000.001",
        "1.2.3.4.5",
        "256.1.1.1",
        "example.0x7f",
    ],
)
def test_an_address_in_disguise_is_refused(host: str) -> None:
    with pytest.raises(BadRequest, match="not a valid name or address"):
        fetcher.parse_url(f"https://{host}/", DEVELOPMENT)


LOCAL = ["127.0.0.1", "127.8.9.1", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "[::1]", "[fd12::1]"]
NEVER = [
    "0.0.0.0",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "169.254.169.254",
    "192.0.0.192",
    "192.88.99.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "[::]",
    "[::127.0.0.1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::ffff:0:127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b:1::1]",
    "[100::1]",
    "[2001::1]",
    "[2001:db8::1]",
    "[2002:7f00:1::1]",
    "[fd00:ec2::254]",
    "[fe80::1]",
    "[fec0::1]",
    "[ff02::1]",
]


@pytest.mark.parametrize("host", [*LOCAL, *NEVER, "localhost", "a.localhost", "localhost.", "printer.local"])
def test_an_internal_host_is_refused(host: str) -> None:
    with pytest.raises(BadRequest, match="not reachable from here"):
        fetcher.parse_url(f"https://{host}/", PRODUCTION)


@pytest.mark.parametrize("host", ["metadata.google.internal", "metadata", "METADATA.goog", "redis.default.svc"])
def test_a_metadata_or_cluster_name_is_refused(host: str) -> None:
    with pytest.raises(BadRequest, match="not reachable from here"):
        fetcher.parse_url(f"https://{host}/", PRODUCTION)


@pytest.mark.parametrize("host", [*LOCAL, "localhost"])
def test_development_rules_reach_this_machine_and_private_networks(host: str) -> None:
    target = fetcher.parse_url(f"http://{host}:8123/x", DEVELOPMENT)

    assert target.port == 8123
    assert target.authority == f"{host}:8123"


@pytest.mark.parametrize("host", NEVER)
def test_development_rules_still_refuse_metadata_multicast_and_embedded_addresses(host: str) -> None:
    with pytest.raises(BadRequest, match="not reachable from here"):
        fetcher.parse_url(f"https://{host}/", DEVELOPMENT)


def test_the_default_port_is_left_out_of_the_host_header() -> None:
    assert fetcher.parse_url("https://[2606:4700::1111]:443/", PRODUCTION).authority == "[2606:4700::1111]"
    assert fetcher.parse_url("https://example.com:80/", PRODUCTION).authority == "example.com:80"


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1) | st.integers(0, 2**128 - 1))
def test_whatever_is_allowed_is_global_for_the_standard_library_too(number: int) -> None:
    address = ip_address(number)

    if fetcher.is_allowed(address):
        assert address.is_global
        assert not address.is_multicast


@settings(deadline=None)
@given(st.text(min_size=0, max_size=60))
def test_any_text_is_parsed_or_refused_with_a_typed_error(text: str) -> None:
    for url in (text, f"https://{text}", f"https://example.com/{text}"):
        try:
            target = fetcher.parse_url(url, PRODUCTION)
        except BadRequest:
            continue
        assert target.path.isascii()
        assert not set(target.host + target.path) & set(" \\\r\n\t")
