"""What the theorems of LibraSpec and SP2ec say, in exact arithmetic, and which of them survive (docs/theory.md)."""

from specsim.theory.adjust import (
    Orbit,
    corrected_bounds,
    exact_alpha,
    iterate,
    printed_bound,
    printed_bounds,
    printed_step,
    repaired_step,
    suffix_gain,
)  # fmt: skip
from specsim.theory.algorithm1 import Run, Step, algorithm1, algorithm1_steps, smallest_bound
from specsim.theory.arms import (
    cost_slopes,
    hoeffding_exponent,
    initial_cost,
    is_concave,
    is_concave_in_cost,
    is_valley,
    kl_inf,
    lower_bound,
    mixture_exponent,
    throughputs,
    tokens_of,
)  # fmt: skip
from specsim.theory.exact import (
    Affine,
    argmax_set,
    eta,
    expected_tokens,
    frac,
    hill_climb,
    is_single_peaked,
    lowest,
    marginal,
    optimal_lengths,
    probabilities,
    survival,
    times,
)  # fmt: skip
from specsim.theory.optimum import (
    Attainment,
    Dinkelbach,
    attainment,
    best_fixed,
    clairvoyant_length,
    dinkelbach,
    outcomes,
    priced_lengths,
    quota_times,
    ratio_lengths,
    shortest_time,
    surplus,
    throughput,
)  # fmt: skip

__all__ = [
    "Affine", "Attainment", "Dinkelbach", "Orbit", "Run", "Step", "algorithm1", "algorithm1_steps", "argmax_set",
    "attainment", "best_fixed", "clairvoyant_length", "corrected_bounds", "cost_slopes", "dinkelbach", "eta",
    "exact_alpha", "expected_tokens", "frac", "hill_climb", "hoeffding_exponent", "initial_cost", "is_concave",
    "is_concave_in_cost", "is_single_peaked", "is_valley", "iterate", "kl_inf", "lower_bound", "lowest", "marginal",
    "mixture_exponent", "optimal_lengths", "outcomes", "priced_lengths", "printed_bound", "printed_bounds",
    "printed_step", "probabilities", "quota_times", "ratio_lengths", "repaired_step", "shortest_time",
    "smallest_bound", "suffix_gain", "surplus", "survival", "throughput", "throughputs", "times", "tokens_of",
]  # fmt: skip
