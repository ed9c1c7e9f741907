"""How the documentation site is made of docs/ (`make docs`); imported by mkdocs and by tests only."""
