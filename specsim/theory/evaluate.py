"""`eval` requests: one JSON object in, one out. Owns the keys and their messages; all mathematics is elsewhere.

Numbers in requests are integers, decimals or strings like "3/4"; a decimal means what is written (0.1 is 1/10).
Rationals come back as `str(Fraction)`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, TypeAlias

from specsim.errors import ConfigError
from specsim.theory.adjust import corrected_bounds, exact_alpha, printed_bounds
from specsim.theory.algorithm1 import algorithm1
from specsim.theory.bandit import bandit_arms
from specsim.theory.exact import Affine, Cost, argmax_set, eta, expected_tokens, frac, optimal_lengths, times
from specsim.theory.optimum import best_fixed, dinkelbach, ratio_lengths, throughput

Request: TypeAlias = Mapping[str, Any]
Answer: TypeAlias = dict[str, Any]

_NUMBER = re.compile(r"[+-]?(\d{1,400}(/\d{1,400}|\.\d{0,400})?|\.\d{1,400})(e[+-]?\d{1,3})?", re.IGNORECASE)
_ALLOWED_NUMBER = "an integer, a decimal or a string like '3/4'"
MAX_POSITIONS = 1024  # exact arithmetic on longer rows takes minutes
MAX_ROUNDS = 1_000_000


class KeyFault(ConfigError):
    """A key of a request that cannot be used."""

    def __init__(self, key: str, found: str, allowed: str) -> None:
        super().__init__(f"key {key!r}: {found}; allowed: {allowed}")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _number(value: Any, key: str, allowed: str = _ALLOWED_NUMBER) -> Fraction:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good and not (isinstance(value, str) and _NUMBER.fullmatch(value)):
        raise KeyFault(key, _shown(value), allowed)
    try:
        return frac(value)
    except ConfigError:  # a denominator of 0
        raise KeyFault(key, _shown(value), allowed) from None


def _list(value: Any, key: str, allowed: str, *, least: int = 0) -> list[Any]:
    if not isinstance(value, list) or not least <= len(value) <= MAX_POSITIONS:
        raise KeyFault(key, _shown(value), allowed)
    return value


def _probabilities(value: Any, key: str) -> list[Fraction]:
    allowed = f"a list of at most {MAX_POSITIONS} numbers in [0, 1]"
    values = [_number(x, f"{key}[{j}]", "a number in [0, 1]") for j, x in enumerate(_list(value, key, allowed))]
    for j, x in enumerate(values):
        if not 0 <= x <= 1:
            raise KeyFault(f"{key}[{j}]", _shown(value[j]), "a number in [0, 1]")
    return values


def _integer(request: Request, key: str, low: int, high: int) -> int:
    value = request[key]
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise KeyFault(key, _shown(value), f"an integer in [{low}, {high}]")
    return value


def _affine(request: Request) -> Affine:
    c, b = _number(request["c"], "c"), _number(request["b"], "b")
    if c <= 0:
        raise KeyFault("c", _shown(request["c"]), "a number > 0")
    if b < 0:
        raise KeyFault("b", _shown(request["b"]), "a number >= 0")
    return Affine(c, b)


def _table(value: Any, depth: int) -> list[Fraction]:
    allowed = f"a list of {depth + 1} numbers > 0, T_0..T_{depth}"
    table = [_number(x, f"T[{d}]") for d, x in enumerate(_list(value, "T", allowed))]
    if len(table) != depth + 1:
        raise KeyFault("T", f"{len(table)} numbers", allowed)
    for d, x in enumerate(table):
        if x < 0 or (x == 0 and d > 0):
            raise KeyFault(f"T[{d}]", _shown(value[d]), "a number > 0")
    return table


def _positive_time(cost: Cost, depth: int, sigma: int) -> None:
    if sigma == 1 and times(cost, depth)[0] == 0:
        raise KeyFault("b" if isinstance(cost, Affine) else "T[0]", "0", "a number > 0 when sigma is 1")


def _round(request: Request) -> tuple[list[Fraction], Cost, int]:
    sigma = _integer(request, "sigma", 0, 1)
    p = _probabilities(request["p"], "p")
    if not p and sigma == 0:
        raise KeyFault("p", "[]", "at least one probability when sigma is 0")
    cost = _table(request["T"], len(p)) if "T" in request else _affine(request)
    _positive_time(cost, len(p), sigma)
    return p, cost, sigma


def _texts(values: list[Fraction] | list[Fraction | None]) -> list[str | None]:
    return [None if x is None else str(x) for x in values]


def _eta(request: Request) -> Answer:
    p, cost, sigma = _round(request)
    speeds = eta(p, cost, sigma)
    return {"M": _texts(expected_tokens(p, sigma)), "eta": _texts(speeds), "dstar": argmax_set(speeds)}


def _eps(request: Request) -> Answer:
    p, cost, sigma = _round(request)
    assert isinstance(cost, Affine)
    return {
        "alpha": _texts(exact_alpha(p, cost, sigma)),  # null where no token is expected: alpha is infinite there
        "eps_printed": printed_bounds(p, cost, sigma),
        "eps_corrected": corrected_bounds(p, cost, sigma),
        "dstar": optimal_lengths(p, cost, sigma),
    }


def _alg1(request: Request) -> Answer:
    q = _probabilities(request["q"], "q")
    alpha = _number(request["alpha"], "alpha")
    if alpha <= 0:
        raise KeyFault("alpha", _shown(request["alpha"]), "a number > 0")
    n, dmax = _integer(request, "n", 1, MAX_POSITIONS), _integer(request, "dmax", 1, MAX_POSITIONS)
    try:
        run = algorithm1(q, alpha, n, dmax)
    except ConfigError as error:  # all else was checked above
        raise KeyFault(
            "q", str(error).partition(";")[0], "confidences up to where the rule stops, at most dmax"
        ) from None
    return {"d": run.d, "blocks": run.blocks, "iterations": run.iterations, "trace": [list(x) for x in run.trace]}


def _lambda(request: Request) -> Answer:
    allowed = "a list of [weight, [p_1, ..]] pairs"
    contexts = []
    for k, pair in enumerate(_list(request["contexts"], "contexts", allowed, least=1)):
        key = f"contexts[{k}]"
        if not isinstance(pair, list) or len(pair) != 2:
            raise KeyFault(key, _shown(pair), "a pair [weight, [p_1, ..]]")
        weight = _number(pair[0], f"{key}[0]", "a weight > 0")
        if weight <= 0:
            raise KeyFault(f"{key}[0]", _shown(pair[0]), "a weight > 0")
        contexts.append((weight, _probabilities(pair[1], f"{key}[1]")))
    cost = _affine(request)
    _positive_time(cost, 0, 1)
    best, fixed = dinkelbach(contexts, cost), best_fixed(contexts, cost)
    ratio = throughput(contexts, cost, ratio_lengths(contexts, cost))
    return {
        "lambda": str(best.lam),
        "d": best.d,
        "ratio_throughput": str(ratio),
        "best_fixed": [fixed[0], str(fixed[1])],
    }


def _float(value: Fraction, key: str) -> float:
    """The nearest float64; the bandits compute in floats."""
    try:
        return float(value)
    except OverflowError:
        raise KeyFault(key, "too large", "a number that float64 can hold") from None


def _bandit(request: Request) -> Answer:
    costs = [
        _number(x, f"costs[{k}]")
        for k, x in enumerate(_list(request["costs"], "costs", "a list of numbers > 0", least=1))
    ]
    for k, x in enumerate(costs):
        if x <= 0 or _float(x, f"costs[{k}]") == 0.0:
            raise KeyFault(f"costs[{k}]", _shown(request["costs"][k]), "a number > 0")
    allowed = f"a list of {len(costs)} rewards, one per cost"
    rewards: list[float | list[float]] = []
    for k, x in enumerate(_list(request["rewards"], "rewards", allowed, least=1)):
        key = f"rewards[{k}]"
        values = _list(x, key, "a number >= 0 or a list of them", least=1) if isinstance(x, list) else [x]
        numbers = [_float(_number(y, key), key) for y in values]
        if min(numbers) < 0:
            raise KeyFault(key, _shown(x), "a number >= 0 or a list of them")
        rewards.append(numbers if isinstance(x, list) else numbers[0])
    if len(rewards) != len(costs):
        raise KeyFault("rewards", f"{len(rewards)} rewards", allowed)
    policy, params = request["policy"], request["params"]
    if not isinstance(policy, str):
        raise KeyFault("policy", _shown(policy), "the name of a bandit controller")
    if not isinstance(params, dict):
        raise KeyFault("params", _shown(params), "an object of parameters")
    rounds = _integer(request, "rounds", 0, MAX_ROUNDS)
    return {"arms": bandit_arms(policy, params, rewards, [float(x) for x in costs], rounds)}


KINDS: dict[str, tuple[Callable[[Request], Answer], tuple[str, ...]]] = {
    "eta": (_eta, ("p", "c", "b", "sigma")),
    "eps": (_eps, ("p", "c", "b", "sigma")),
    "alg1": (_alg1, ("q", "alpha", "n", "dmax")),
    "lambda": (_lambda, ("contexts", "c", "b")),
    "bandit": (_bandit, ("policy", "params", "rewards", "costs", "rounds")),
}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for n, (key, _) in enumerate(pairs) if any(key == other for other, _ in pairs[:n]))
        raise KeyFault(twice, "given twice", "each key once")
    return found


def _no_constant(text: str) -> Any:
    raise ConfigError(f"{text} is no JSON number; allowed: finite numbers")


def evaluate(line: str) -> Answer:
    """The answer to one request, a JSON object with the key `kind` and exactly the keys of that kind.

    Raises:
        ConfigError: no such object; the message names the key and what is allowed.
    """
    try:
        request = json.loads(line, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON ({error}); allowed: one JSON object per line") from None
    if not isinstance(request, dict):
        raise ConfigError(f"{_shown(request)} is no request; allowed: one JSON object per line")
    kind = request.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise KeyFault("kind", _shown(kind) if "kind" in request else "missing", ", ".join(KINDS))
    answer, keys = KINDS[kind]
    if kind == "eta" and "T" in request:
        keys = ("p", "T", "sigma")
    allowed = ", ".join(("kind", *keys)) + (" (or T in place of c and b)" if kind == "eta" else "")
    for key in keys:
        if key not in request:
            raise KeyFault(key, "missing", allowed)
    for key in request:
        if key not in ("kind", *keys):
            raise KeyFault(key, "unknown", allowed)
    return answer(request)
