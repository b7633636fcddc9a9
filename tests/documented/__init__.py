"""Every command and code block of the pages in ``docs``, and how a reader runs them."""
