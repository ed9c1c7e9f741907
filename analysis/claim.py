"""What a claim of a paper is, for the tables of `analysis.claims`."""

from __future__ import annotations

from dataclasses import dataclass, field

from analysis.judges import Judge

THEIR_MODELS = "cannot be tested here: needs the paper's models and a GPU"


@dataclass(frozen=True)
class Claim:
    """One quantitative claim.

    Args:
        place: in the paper.
        text: what it says.
        experiments: whose results bear on it; none: it is not a matter of measurement here.
        judge: of results.json.
        number: whether the paper's own number can be tested here.
    """

    place: str
    text: str
    experiments: tuple[str, ...] = ()
    judge: Judge = lambda document: None
    number: str = field(default=THEIR_MODELS, kw_only=True)
