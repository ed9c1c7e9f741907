"""Families of draft configurations built with a real target: `python -m real.arms` (docs/builders.md)."""
