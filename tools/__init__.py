"""Programs that make what the project ships. They are not part of the package."""
