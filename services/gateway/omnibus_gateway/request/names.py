"""Parts of the names of requests."""

from functools import lru_cache
from hashlib import sha256


@lru_cache(4096)
def app_letters(app: str) -> str:
    """Return a few letters that identify an app in short ids."""
    return sha256(app.encode()).hexdigest()[:4]
