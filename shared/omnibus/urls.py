"""URLs in printable form, and lists of them."""

import re

_NEXT_URL = re.compile(r",\s*(?=[a-z+]+://)")


def split_urls(urls: str) -> list[str]:
    """Return the URLs of a list with commas, each with its scheme.

    A comma within a URL, as in a password, is part of it.
    """
    return _NEXT_URL.split(urls.strip())


def redact_url(url: str) -> str:
    """Return ``url``, or each of a list, in printable form: without user and password."""
    return ",".join(map(_redact_one, split_urls(url)))


def _redact_one(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"
