"""`python -m specsim.latency`."""

from specsim.errors import run_cli
from specsim.latency.cli import main

if __name__ == "__main__":
    run_cli(main, prog_name="python -m specsim.latency")
