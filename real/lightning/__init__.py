"""Comparisons of controllers under Lightning: prompts, decoding, recording, tracking, and the command line."""
