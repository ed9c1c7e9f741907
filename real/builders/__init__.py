"""Builders of draft configurations: which sub-blocks or visual tokens a draft pass leaves out (docs/builders.md)."""
