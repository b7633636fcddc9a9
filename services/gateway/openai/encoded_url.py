"""Data URLs whose data has not been read."""


class EncodedUrl(str):
    """A data URL up to its comma; ``encoded`` is what follows it, base64 in a body that has not been decoded."""

    __slots__ = ("encoded",)
    encoded: memoryview

    def __new__(cls, header: str, encoded: memoryview) -> "EncodedUrl":
        made = super().__new__(cls, header)
        made.encoded = encoded
        return made
