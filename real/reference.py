"""Reference-assisted verification: the target's recorded output decides, not the target as it runs.

SP2ec's released benchmark measures this way by default (hyuqi/sp2ec at 1cbdcb5): plain decoding makes the reference
text first; a speculative run then computes the target's logits, whose time is paid, but compares drafts with the
reference, and commits the reference's tokens. So every method decodes the same text also where passes over several
tokens round otherwise than passes over one. It proves nothing about losslessness, and is no way to decode: the text has
to be known. Only at temperature 0 is there one text to know.

Owns the verdict, its audit (positions where the target would have chosen another token; the released code counts them
for chains), and the label that everything measured this way carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from real.tree import depths, walk
from real.verify import Draft
from specsim.errors import ConfigError

LIVE, ASSISTED = "live", "reference-assisted"
VERIFICATIONS: Final = (LIVE, ASSISTED)
_NOTHING = -1  # follows the last token of a text


def labelled(controller: str, verification: str) -> str:
    """How tables, logs and curves name a controller that was measured so."""
    return controller if verification == LIVE else f"{controller} ({verification})"


class Reference:
    """The output that decides in a decode.

    Args:
        tokens: the whole output of plain decoding, for the same prompt and settings.

    Attributes:
        mismatches: tokens of the output in whose place the target would have chosen another.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens, self.mismatches = list(tokens), 0

    def verdict(self, draft: Draft, scores: torch.Tensor, pos: int) -> tuple[list[int], list[int] | None, bool]:
        """What a round yields: (tokens, path of a tree's nodes or None, whether a number was not finite).

        The tokens are drafted ones that are the reference's and then one more of the reference, unless it ends.

        Args:
            draft: d tokens, a chain or a tree.
            scores: float[d + 1, V] processed logits of the target.
            pos: output position of the first draft token.

        Raises:
            ConfigError: the reference ends before the decode does.
        """
        if pos >= len(self._tokens):
            raise ConfigError(
                f"the reference text ends after {len(self._tokens)} tokens, where decoding goes on; it has to be the "
                "whole output of plain decoding under the same settings"
            )
        top, best = scores.max(dim=-1)
        unsound, *both = torch.cat([(~torch.isfinite(top).all())[None].long(), best, draft.tokens]).tolist()
        choices, drafted = both[: len(best)], both[len(best) :]
        chain = draft.parents is None
        parents = range(-1, len(drafted) - 1) if draft.parents is None else draft.parents.tolist()
        ahead = [0, *depths(parents)]

        def choose(row: int) -> int:
            place = pos + ahead[row]
            return self._tokens[place] if place < len(self._tokens) else _NOTHING

        path, token = walk(drafted, parents, choose)
        new = [drafted[node] for node in path] + ([] if token == _NOTHING else [token])
        rows = [0, *(node + 1 for node in path)]
        self.mismatches += sum(choices[row] != chosen for row, chosen in zip(rows, new, strict=False))
        return new, None if chain else path, bool(unsound)
