"""Drafters: one file each, none contains a decode loop."""
