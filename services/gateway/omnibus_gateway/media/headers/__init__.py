"""Metadata in the first bytes of media files. Nothing here decodes anything."""
