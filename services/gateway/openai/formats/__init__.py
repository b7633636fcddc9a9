"""What media files say about themselves in their first bytes. Nothing here decodes anything."""
