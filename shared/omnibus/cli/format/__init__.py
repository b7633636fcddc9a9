"""What commands print, as text."""
