"""SP2ec's throughput over ordered arms (arXiv 2610.18735): mean tokens, slopes in cost, single peaks, the lower bound.

Exact, except for the information terms of the lower bound, which involve logarithms and are float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

from specsim.errors import ConfigError
from specsim.theory.exact import Number, Vector, argmax_set, frac, probabilities


def tokens_of(acceptance: Vector, draft_len: int) -> list[Fraction]:
    """mu = sum_{j=0..L} a^j per arm: expected tokens when every draft token is accepted with probability a."""
    return [sum((a**j for j in range(draft_len + 1)), Fraction(0)) for a in probabilities(acceptance, "acceptance")]


def throughputs(mu: Vector, cost: Vector) -> list[Fraction]:
    """nu_k = mu_k / c_k.

    Raises:
        ConfigError: costs not positive and ascending, or lengths that differ.
    """
    means, costs = [frac(x, "mu") for x in mu], [frac(x, "cost") for x in cost]
    if len(means) != len(costs) or not costs or costs[0] <= 0 or any(b <= a for a, b in itertools.pairwise(costs)):
        raise ConfigError("arms: allowed are as many costs as means, the costs positive and ascending")
    return [m / c for m, c in zip(means, costs, strict=True)]


def cost_slopes(mu: Vector, cost: Vector) -> list[Fraction]:
    """s_k = (mu_{k+1} - mu_k) / (c_{k+1} - c_k); errors as of `throughputs`."""
    throughputs(mu, cost)
    means, costs = [frac(x) for x in mu], [frac(x) for x in cost]
    return [(means[k + 1] - means[k]) / (costs[k + 1] - costs[k]) for k in range(len(costs) - 1)]


def is_concave(values: Sequence[Fraction]) -> bool:
    """Whether differences do not grow: concave in the index."""
    steps = [b - a for a, b in itertools.pairwise(values)]
    return all(later <= earlier for earlier, later in itertools.pairwise(steps))


def is_concave_in_cost(mu: Vector, cost: Vector) -> bool:
    """Whether the slopes in cost do not grow: the assumption of R7."""
    slopes = cost_slopes(mu, cost)
    return all(later <= earlier for earlier, later in itertools.pairwise(slopes))


def is_valley(values: Sequence[Fraction]) -> bool:
    """Whether some value lies strictly below one on either side: local search can then be trapped."""
    return any(
        values[k] < max(values[:k], default=values[k]) and values[k] < max(values[k + 1 :], default=values[k])
        for k in range(len(values))
    )


def kl_inf(law: Vector, mean: Number) -> float:
    """Least KL(law, Q) over laws Q on {1..len(law)} with mean at least `mean`; nats, by bisection on the dual.

    max over 0 <= t <= 1 / (top - mean) of E ln(1 - t (N - mean)), a concave function of t. Infinite when the mean is
    above the largest value, or equal to it while `law` has mass below.

    Args:
        law: Pr(N = 1), Pr(N = 2), ...
        mean: in units of N.

    Raises:
        ConfigError: `law` does not add up to 1.
    """
    weights = probabilities(law, "law")
    if sum(weights) != 1:
        raise ConfigError(f"law: adds up to {sum(weights)}; allowed: 1")
    top, target = len(weights), frac(mean, "mean")
    own = sum((n * w for n, w in enumerate(weights, 1)), Fraction(0))
    if own >= target:
        return 0.0
    if target > top:
        return math.inf
    if target == top:
        return -math.log(weights[-1]) if weights[-1] else math.inf
    support = [(float(n - target), float(w)) for n, w in enumerate(weights, 1) if w]
    low, high = 0.0, 1.0 / float(top - target)
    for _ in range(200):
        t = (low + high) / 2
        terms = [(1 - t * x, x, w) for x, w in support]
        falls = any(v <= 0 for v, _, _ in terms) or sum(-w * x / v for v, x, w in terms) < 0
        low, high = (low, t) if falls else (t, high)
    return sum(w * math.log(1 - low * x) for x, w in support)


def lower_bound(laws: Sequence[Vector], cost: Vector) -> float:
    """Coefficient of ln n in the wall-time regret that unimodal structure imposes (Combes and Proutiere, 2014).

    sum over the two neighbours of the best arm of c_k (1 - nu_k / nu*) / KL_inf(law_k, nu* c_k): a neighbour that
    cannot reach nu* under any law costs nothing.

    Raises:
        ConfigError: bad laws or costs, or the best arm is not unique.
    """
    mu = [sum((n * w for n, w in enumerate(probabilities(law), 1)), Fraction(0)) for law in laws]
    nu = throughputs(mu, cost)
    best = argmax_set(nu)
    if len(best) != 1:
        raise ConfigError(f"arms {best} are equally good; allowed: one best arm")
    total = 0.0
    for k in (best[0] - 1, best[0] + 1):
        if 0 <= k < len(nu):
            c = frac(cost[k])
            distance = kl_inf(laws[k], nu[best[0]] * c)
            total += float(c * (1 - nu[k] / nu[best[0]])) / distance
    return total


def initial_cost(mu: Vector, cost: Vector) -> Fraction:
    """Wall-time regret of pulling every arm once: sum of c_k (1 - nu_k / nu*), in units of cost."""
    return pseudo_regret(mu, cost, [1] * len(mu))


def pseudo_regret(mu: Vector, cost: Vector, pulls: Sequence[int]) -> Fraction:
    """Wall-time pseudo-regret of pulling arm k `pulls[k]` times: sum of n_k c_k (1 - nu_k / nu*), in units of cost."""
    nu = throughputs(mu, cost)
    terms = (n * frac(c) * (1 - x / max(nu)) for n, c, x in zip(pulls, cost, nu, strict=True))
    return sum(terms, Fraction(0))


def hoeffding_exponent(beta: Number) -> Fraction:
    """2 beta^2: with radius beta (L/2) sqrt((1+n)/n^2 (1 + 2 ln(3 l^2 sqrt(1+n)))), the chance that a mean of n <= l
    rewards in [1, L+1] lies that far off falls like l to the minus this, for fixed n (Hoeffding's inequality)."""
    return 2 * frac(beta, "beta") ** 2


def mixture_exponent(beta: Number) -> Fraction:
    """(5 beta^2 - 1) / 2: the same, but for all n <= l at once, by the method of mixtures; our derivation.

    beta^2 (1 + 2 ln(X/delta)) = 1 + 2 ln(X/delta') with X = sqrt(1+n), delta = 1/(3 l^2) gives delta' of order
    l^(-2 beta^2) (1+n)^((1 - beta^2) / 2), and n <= l. For beta >= 1 the second factor helps: 2 beta^2 holds there.
    """
    square = frac(beta, "beta") ** 2
    return (5 * square - 1) / 2 if square < 1 else 2 * square
