"""`python -m tests.golden [--update]`: compare the golden logs, or write those that are missing or changed."""

from __future__ import annotations

import argparse
import sys

from tests.golden import FOLDER, cases, golden_log, path_of, text_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write the files, and remove those nobody needs")
    update = parser.parse_args().update
    differing = 0
    for name, kind, spelling in cases():
        path, text = path_of(name, kind), text_of(golden_log(kind, spelling))
        state = "missing" if not path.exists() else "ok" if path.read_text(encoding="utf-8") == text else "changed"
        if state != "ok":
            differing += 1
            print(f"{path.name}: {state}{', written' if update else ''}")
            if update:
                path.write_text(text, encoding="utf-8")
    for path in sorted(set(FOLDER.glob("*.json")) - {path_of(name, kind) for name, kind, _ in cases()}):
        differing += 1
        print(f"{path.name}: of no registered controller{', removed' if update else ''}")
        if update:
            path.unlink()
    print(f"{len(cases())} golden logs, {differing} differing")
    return 1 if differing and not update else 0


if __name__ == "__main__":
    sys.exit(main())
