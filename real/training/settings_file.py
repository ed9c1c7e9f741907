"""`settings.json` of a folder that a command goes on with: what was made there with other settings is not mixed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specsim.errors import ConfigError
from specsim.paths import replace_file

SETTINGS = "settings.json"


def check_same(folder: Path, settings: dict[str, Any], *, holds: str, advice: str) -> bool:
    """Whether the folder has the file, which then says the same.

    Args:
        folder: need not exist.
        settings: JSON values.
        holds: what lies in the folder, for messages: `texts`.
        advice: what to do when it cannot be used.

    Raises:
        ConfigError: other settings there, or a file that cannot be read.
    """
    file = folder / SETTINGS
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: cannot be read ({error}); {advice}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: holds {str(found)[:40]!r}, no settings; {advice}")
    wanted = json.loads(json.dumps(settings))
    different = sorted(key for key in {*wanted, *found} if wanted.get(key) != found.get(key))
    if different:
        key = different[0]
        raise ConfigError(
            f"{folder} holds {holds} made with other settings ({', '.join(different)}; {key} was {found.get(key)!r}, "
            f"now {wanted.get(key)!r}); {advice}"
        )
    return True


def write_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write the file in one step."""
    with replace_file(folder / SETTINGS) as temporary:
        temporary.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
