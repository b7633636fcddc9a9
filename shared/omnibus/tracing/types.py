"""Types of the data that traces contain."""

#: Small values of JSON.
Value = str | int | float | bool

#: W3C trace context as headers. It makes another span a child.
Carrier = dict[str, str]
