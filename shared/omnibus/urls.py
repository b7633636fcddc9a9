"""URLs as people may see them, and lists of them."""

import re

_NEXT_URL = re.compile(r",\s*(?=[a-z+]+://)")


def split_urls(urls: str) -> list[str]:
    """URLs of a list with commas, each with its scheme; a comma within one, as in a password, is a part of it."""
    return _NEXT_URL.split(urls.strip())


def redact_url(url: str) -> str:
    """``url``, or each of a list, as it may be printed: without user and password."""
    return ",".join(map(_redact_one, split_urls(url)))


def _redact_one(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"
