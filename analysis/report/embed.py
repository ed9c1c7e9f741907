"""What makes one file of the page: scripts, styles and data inside it, and the policy that shuts the network out.

Owns escaping inside `script` elements. Names of runs and controllers are other people's text; between tags jinja2
escapes them, inside data this module does, and the policy runs no script but the three named by their digests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

_HERE = Path(__file__).parent
_UNSAFE = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def as_data(value: Any) -> Markup:
    """JSON that may stand in a `script` element: nothing in it can end the element or begin a comment.

    Args:
        value: JSON values; NaN and infinities raise ValueError.
    """
    return Markup(json.dumps(value, allow_nan=False, separators=(",", ":")).translate(_UNSAFE))


@cache
def script(name: str) -> Markup:
    """The text of a script of the page: "plotly", or a file of this folder."""
    text = get_plotlyjs() if name == "plotly" else (_HERE / name).read_text(encoding="utf-8")
    if "</script" in text.lower() or "<!--" in text:
        raise AssertionError(f"{name} would end its own script element")
    return Markup(text)


def breakable(text: str) -> Markup:
    """Escaped text that may go on in a new line after a comma, a colon or a slash between other characters."""
    return Markup(re.sub(r"(?<=\w)([,:/])(?=\w\w)", r"\1<wbr>", str(escape(text))))


def policy(scripts: tuple[str, ...]) -> str:
    """Content-Security-Policy: these scripts by digest, styles of the page, pictures made in it, and no request.

    plotly.js sets styles on elements as it draws, which needs 'unsafe-inline' for styles; it saves pictures by way of
    data: and blob: addresses.
    """
    digests = " ".join(f"'sha256-{_digest(script(name))}'" for name in scripts)
    return (
        f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def render(**page: Any) -> str:
    """The page from its parts; every text is escaped."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(script=script, as_data=as_data, breakable=breakable)
    scripts = ("theme.js", "plotly", "report.js")
    style = Markup((_HERE / "report.css").read_text(encoding="utf-8"))
    return environment.get_template("report.html.j2").render(policy=policy(scripts), style=style, **page)
