"""Types of the data that traces contain."""

#: Small values of JSON.
Value = str | int | float | bool

#: W3C trace context as headers: what makes something a part of a span.
Carrier = dict[str, str]
