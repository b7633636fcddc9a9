"""The Responses API on the wire: requests, items, the response object and the events of its stream."""
