"""What the docstrings here say more tersely than their parser knows, spelt out for it.

* "a, b: text" describes two parameters with one text; `a` then refers to `b`.
* "Args:" of a class without a signature of its own in the source (a NamedTuple, a Protocol) describes its fields.
"""

from __future__ import annotations

import re

import griffe

_SEVERAL = re.compile(r"^(?P<indent> +)(?P<names>\*{0,2}\w+(?:,\s+\*{0,2}\w+)+): (?P<text>.*)$", re.MULTILINE)
_ARGS = re.compile(r"^Args:$", re.MULTILINE)


def spelt_out(text: str) -> str:
    """A docstring in which every name has a line of its own."""

    def one_each(found: re.Match[str]) -> str:
        first, *rest = re.split(r",\s+", found["names"])
        lines = [f"{found['indent']}{name}: see `{rest[-1]}`." for name in (first, *rest[:-1])]
        return "\n".join([*lines, f"{found['indent']}{rest[-1]}: {found['text']}"])

    return _SEVERAL.sub(one_each, text)


class Terse(griffe.Extension):
    """Applies the above to every docstring that is read."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Change an object's docstring before it is parsed."""
        if obj.docstring is None:
            return
        obj.docstring.value = spelt_out(obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **kwargs: object) -> None:
        """Fields instead of parameters, for classes that are no dataclasses and have no __init__."""
        made = "__init__" in cls.members or any("dataclass" in str(one.value) for one in cls.decorators)
        if cls.docstring is not None and not made:
            cls.docstring.value = _ARGS.sub("Attributes:", cls.docstring.value)
