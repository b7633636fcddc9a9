"""Media of requests and answers: inline, by URL, uploaded, kept for clients, spoken."""
