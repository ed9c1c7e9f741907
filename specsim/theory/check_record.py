"""What a check says: one verdict per property, its words and its numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from specsim.theory.check_noise import MIN_REQUESTS, Noise

HOLDS: Final = "holds"
VIOLATED: Final = "violated"
UNDECIDED: Final = "not decidable"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One property on one trace.

    Attributes:
        id: name of the property.
        statement: what is tested, in one sentence.
        verdict: `holds` (no violation beyond noise), `violated` or `not decidable`.
        text: the place and size of a violation, or how much was seen, or how much data is missing.
        details: numbers, JSON values.
    """

    id: str
    statement: str
    verdict: str
    text: str
    details: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "id": self.id,
            "statement": self.statement,
            "verdict": self.verdict,
            "text": self.text,
            "details": self.details,
        }


def too_few(id: str, statement: str, noise: Noise) -> Verdict | None:
    """The verdict where there are too few requests to resample, None where there are enough."""
    if noise.requests >= MIN_REQUESTS:
        return None
    have = f"{noise.requests} request{'s' if noise.requests > 1 else ''}"
    return Verdict(
        id=id,
        statement=statement,
        verdict=UNDECIDED,
        text=f"{have}; at least {MIN_REQUESTS} are needed to tell noise from shape",
        details={"requests": noise.requests, "requests_needed": MIN_REQUESTS},
    )


def too_noisy(id: str, statement: str, noise: Noise, half: float, wanted: float, what: str, **details: Any) -> Verdict:
    """The verdict where the band is so wide that nothing of practical size could have been seen."""
    finite = half < float("inf")
    needed = int(noise.requests * (half / wanted) ** 2) + 1 if finite else None
    how = f"about {needed} requests of this kind" if needed else "more requests"
    width = f"the band is +-{half:.2g} wide" if finite else "no number has a band"
    return Verdict(
        id=id,
        statement=statement,
        verdict=UNDECIDED,
        text=f"{noise.requests} requests, and {width} ({what}); {how} would bring it to {wanted:g}",
        details={"requests": noise.requests, "requests_needed": needed, "half_width": half if finite else None}
        | details,
    )


def numbers(values: Any, digits: int = 6) -> list[float | None]:
    """Rounded numbers for JSON; what is not finite is None."""
    return [round(float(v), digits) if abs(float(v)) < float("inf") else None for v in values]
