"""Whether measured arms have the shape SP2ec relies on: mean tokens concave in cost.

If they are, throughput has one peak, and a search among neighbours finds it (docs/theory.md, R7); if not, it can be
trapped beside a valley. This judges means as they were measured; `python -m specsim.theory check` does so on arm
traces, with noise bands over requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from specsim.errors import ConfigError
from specsim.theory.check_noise import Sag


def concave_in_cost(
    mu: Sequence[float],
    cost: Sequence[float],
    *,
    error: Sequence[float] | None = None,
    cost_error: Sequence[float] | None = None,
    z: float = 2.0,
) -> list[Sag]:
    """Where mean tokens lie below a chord over cost; nothing: concave, as far as noise lets one tell.

    Args:
        mu: mean tokens per round of each arm, in any order.
        cost: mean seconds per round of each arm, all different.
        error, cost_error: standard errors of `mu` and of `cost`; None: taken to be exact.
        z: standard errors of the distance from the chord that count as noise.

    Returns:
        For each arm below a chord beyond noise the chord that most of it is sure of, by ascending cost; `left`,
        `middle` and `right` number the arms as given, `amount` is in tokens and `sure` what noise leaves of it.

    Raises:
        ConfigError: lists of different length, or costs that are not positive and different.
    """
    means, costs = np.asarray(mu, np.float64), np.asarray(cost, np.float64)
    errors, cost_errors = (
        np.zeros(len(means)) if one is None else np.asarray(one, np.float64) for one in (error, cost_error)
    )
    if not len(means) == len(costs) == len(errors) == len(cost_errors):
        raise ConfigError(f"arms: {len(means)} means, {len(costs)} costs, {len(errors)} errors; give as many of each")
    if not (np.isfinite(means).all() and np.isfinite(costs).all() and (costs > 0).all()):
        raise ConfigError("arms: allowed are finite means and positive costs")
    order = np.argsort(costs, kind="stable")
    if any(costs[a] == costs[b] for a, b in pairwise(order)):
        raise ConfigError("arms: two cost the same; leave one of them out")
    found = []
    for place in range(1, len(order) - 1):
        chords = [
            _sag((order[left], order[place], order[right]), means, costs, errors, cost_errors, z)
            for left in range(place)
            for right in range(place + 1, len(order))
        ]
        worst = max(chords, key=lambda sag: sag.sure)
        if worst.sure > 1e-9:  # below it is rounding
            found.append(worst)
    return found


def _sag(
    arms: tuple[int, int, int],
    means: np.ndarray,
    costs: np.ndarray,
    errors: np.ndarray,
    cost_errors: np.ndarray,
    z: float,
) -> Sag:
    left, middle, right = arms
    share = (costs[middle] - costs[left]) / (costs[right] - costs[left])
    slope = (means[right] - means[left]) / (costs[right] - costs[left])
    amount = means[left] + share * (means[right] - means[left]) - means[middle]
    # An error of a cost moves its arm along the chord's slope.
    own = np.hypot(errors[list(arms)], slope * cost_errors[list(arms)])
    spread = np.sqrt(((1 - share) * own[0]) ** 2 + own[1] ** 2 + (share * own[2]) ** 2)
    return Sag(int(left), int(middle), int(right), float(amount), float(amount - z * spread))


def concavity_warning(
    names: Sequence[str],
    mu: Sequence[float],
    cost: Sequence[float],
    *,
    error: Sequence[float] | None = None,
    cost_error: Sequence[float] | None = None,
) -> str | None:
    """What to tell a user about arms that `concave_in_cost` finds fault with; None: nothing.

    Args:
        names: of the arms.
        mu, cost, error, cost_error: as there.
    """
    found = concave_in_cost(mu, cost, error=error, cost_error=cost_error)
    if not found:
        return None
    sags = "; ".join(
        f"{names[s.middle]!r} lies {s.amount:.2g} tokens below the chord from {names[s.left]!r} to {names[s.right]!r}"
        for s in found
    )
    return (
        f"mean tokens are not concave in cost: {sags}. Throughput may then have more than one peak, and sp2ec stay at "
        "the wrong one; compare with best-arm, or leave arms out"
    )
