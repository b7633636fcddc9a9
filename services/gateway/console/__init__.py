"""The console: one page for people, plain HTML, CSS and modules that are served as they are, and the data behind it."""
