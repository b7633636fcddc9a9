"""URLs as people may see them."""


def redact_url(url: str) -> str:
    """``url`` as it may be printed: without user and password."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"
