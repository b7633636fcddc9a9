"""The OpenAI shapes at the HTTP edge. Import from the rooms: requests, conversation, media, answers, stream."""
