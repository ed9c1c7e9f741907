"""Real decoding: records traces and latencies the simulator replays (torch, transformers)."""
