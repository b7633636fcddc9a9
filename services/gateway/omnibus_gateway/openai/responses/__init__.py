"""Wire format of the Responses API: requests, items, the response object and its events."""
