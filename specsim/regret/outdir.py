"""`--out DIR` of a regret run: results.json, config.json and provenance.json, all or none, as the replay's."""

from __future__ import annotations

import json
from pathlib import Path

from specsim.outdir import RESULTS, OutDir
from specsim.regret.compare import SCHEMA


class RegretDir(OutDir):
    """`specsim.outdir.OutDir` for another document: only a finished regret folder may be replaced."""

    def _check_free(self) -> None:
        with self._reporting():
            if not self.path.exists():
                return
            if not self.path.is_dir():
                raise self._refusal("is a file; name a folder that does not exist yet")
            if Path.cwd().is_relative_to(self.path):
                raise self._refusal("is the folder you are in, which cannot be replaced; name a folder inside it")
            finished, empty = _is_finished(self.path), not any(self.path.iterdir())
        if finished and not self._force:
            raise self._refusal("holds a finished run; choose another folder or add --force to replace it")
        if not finished and not empty:
            raise self._refusal("is not empty and holds no finished regret run; choose another folder")


def _is_finished(folder: Path) -> bool:
    try:
        document = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError, ValueError):
        return False
    return isinstance(document, dict) and document.get("schema") == SCHEMA
