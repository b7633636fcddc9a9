"""Parts of the names of requests."""

from functools import lru_cache
from hashlib import sha256


@lru_cache(4096)
def app_letters(app: str) -> str:
    """Ids are short: an app's own sequence is told apart by a few letters of it."""
    return sha256(app.encode()).hexdigest()[:4]
