"""Trace-driven simulation of speculative-decoding controllers."""

__version__ = "0.1.0"
