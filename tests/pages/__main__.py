"""``python -m tests.pages`` writes the pages that are made from definitions."""

from tests.pages import write_pages

if __name__ == "__main__":
    write_pages()
