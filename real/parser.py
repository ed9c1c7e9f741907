"""The parser of the Lightning command lines, whose refusals are one line, and their Trainer's defaults.

jsonargparse answers a mistake with the usage of every key and an indented tree of what it tried. Here a mistake is a
ConfigError that names the key, what was found and what is allowed; what the Trainer refuses when it is made, too.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NoReturn

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.cli import LightningArgumentParser

from specsim.errors import ConfigError

TRAINER_DEFAULTS = {  # of every command: it keeps, shows and shares out by itself
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "enable_progress_bar": False,
    "use_distributed_sampler": False,
}
_KEY = re.compile(r'Parser key "([^"]+)":?')
_NOISE = re.compile(
    r"Does not validate against any of the Union subtypes|Subtypes: |Errors:|Given value type: |Given value: "
    r"|Problem with given class_path '[^']*':$|Expected a <class 'NoneType'>"
)


class OneLineParser(LightningArgumentParser):
    """A LightningArgumentParser whose errors are a ConfigError of one line; keys have to be written in full."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # The beginning of a key would do otherwise, and a misspelt key could set another one.
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:  # a parser inside the parser, tried out
            super().error(message, ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        prog = parser.prog.replace(" [options]", "")
        raise ConfigError(f"{one_line(message)}; `{prog} --help` lists what there is") from ex

    def parse_args(self, *args: Any, **kwargs: Any) -> Any:
        """As jsonargparse's.

        Raises:
            ConfigError: the arguments or a file named by them cannot be used.
        """
        try:
            return super().parse_args(*args, **kwargs)
        except UnicodeDecodeError as error:
            given = sys.argv[1:] if not args or args[0] is None else list(args[0])
            self.error(f"{', '.join(_files_of(given))}: not a text file in UTF-8 ({error.reason})", error)
        except (ValueError, OSError) as error:
            self.error(str(error), error)


@contextlib.contextmanager
def trainer_refusals() -> Iterator[None]:
    """Turn what a Trainer raises over its settings into a ConfigError of one line."""
    try:
        yield
    except (MisconfigurationException, ValueError, ImportError) as error:  # the last of hardware without its package
        raise ConfigError(f"trainer: {' '.join(str(error).split())}") from error


def _files_of(given: Sequence[str]) -> list[str]:
    """The files that a command line's `--config` name."""
    apart = [value for key, value in pairwise(given) if key == "--config"]
    return apart + [text.partition("=")[2] for text in given if text.startswith("--config=")]


def one_line(message: str) -> str:
    """jsonargparse's message as `key: reason; found value`."""
    lines = [line.strip().removeprefix("- ") for line in message.splitlines() if line.strip()]
    key = ".".join(_KEY.findall(message))
    reasons = [_KEY.sub("", line).strip() for line in lines if not _NOISE.match(line)]
    reason = " or ".join(dict.fromkeys(text for text in reasons if text)) if key else " ".join(reasons)
    # The innermost value comes first.
    found = next((line.removeprefix("Given value: ") for line in lines if line.startswith("Given value: ")), "")
    if found and reason.startswith("Expected") and "Got value" not in reason:
        reason += f"; found {found}"
    reason = re.sub(r"Expected an? <class '([\w.]+)'>", r"allowed: \1", reason).replace(". Got value: ", "; found ")
    return f"{key}: {reason}" if key else reason
