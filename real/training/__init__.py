"""Training under Lightning: a small target, and drafters on what a target writes itself (docs/training.md)."""
