"""``python -m tests.pages`` writes the generated pages."""

from tests.pages import write_pages

if __name__ == "__main__":
    write_pages()
