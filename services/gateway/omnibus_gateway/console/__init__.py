"""The web console: a page of static HTML, CSS and modules, and its data."""
