"""Studies of SP2ec's claims: pulls outside the top three, number of arms, the trap in a valley, beta."""

from __future__ import annotations

from typing import Any

from specsim.regret.family import make_family
from specsim.regret.study_tools import Field, Study, answer, percent, table, wilson

UNITS_MS = (28, 50, 100, 130, 150)
SP2EC_SHARE, UCBSPEC_SHARE = (0.06, 0.16), (0.49, 0.53)  # pulls outside the top three, as the papers report
_Q_OUTSIDE = "How often are arms outside the three best pulled in 512 rounds, and does that depend on the unit of time?"
_Q_ARMS = "Does SP2ec's regret depend on the number of arms once the initial pulls are set aside?"
_Q_VALLEY = "How often is SP2ec trapped at the wrong end of a valley?"
_Q_BETA = "Below beta = 1 / sqrt 2, outside the logarithmic guarantee: what is gained on average, what is risked?"


def _within(share: float, low: float, high: float) -> str:
    return "inside" if low <= share <= high else "below" if share < low else "above"


def outside(runs: int, rounds: int, seed: int) -> dict[str, Any]:
    """Shares of pulls outside the top three, per family and unit of time."""
    tables, lines = [], []
    for name in ("sharp", "flat"):
        rows, shares = [], {}
        for unit in UNITS_MS:
            field = Field(make_family(name, unit_s=unit / 1000), rounds=rounds, runs=runs, seed=seed)
            row: list[Any] = [f"{unit} ms"]
            for policy in ("sp2ec", "global-ucb", "ucbspec"):
                result = field.result(policy)
                shares[policy, unit] = result["outside_top3"]["mean"]
                row += [100 * shares[policy, unit], 100 * result["relative_loss"]]
            rows.append(row)
        columns = ["target step", "sp2ec %", "loss %", "global-ucb %", "loss %", "ucbspec %", "loss %"]
        tables.append(
            table(f"family {name}: pulls outside the top three, and time lost to the best arm", columns, rows)
        )
        own = [shares["sp2ec", unit] for unit in UNITS_MS]
        rival = [shares["ucbspec", unit] for unit in UNITS_MS]
        lines += [
            f"{name}: SP2ec {percent(min(own))} to {percent(max(own))} over these units (rounding breaks ties), "
            f"{_within(own[1], *SP2EC_SHARE)} the paper's 6-16 %; without its neighbourhood "
            f"{percent(shares['global-ucb', 50])}",
            f"{name}: UCBSpec {percent(rival[0])} at {UNITS_MS[0]} ms to {percent(rival[-1])} at {UNITS_MS[-1]} ms, "
            f"there {_within(rival[-1], *UCBSPEC_SHARE)} the papers' 49-53 %",
        ]
    lines.append("UCBSpec adds a radius in tokens to tokens per second: the slower the hardware, the more it explores.")
    return answer(_Q_OUTSIDE, "outside-top3", runs, rounds, seed, tables, lines)


def arms(runs: int, rounds: int, seed: int) -> dict[str, Any]:
    """Regret net of the initial pulls: the same range cut finer, and padded with worse arms."""
    policies = ("sp2ec:reset=0", "klucb-unimodal:reset=0", "global-ucb:reset=0", "ucbspec")
    series = {
        "refined": [(k, make_family("sharp", arms=k)) for k in (5, 14, 27, 53, 105)],
        "padded": [
            (k, make_family("sharp", arms=k, peak=0.2, dearest=0.1 + 0.05 * (k - 1))) for k in (5, 7, 14, 28, 56)
        ],
    }
    tables, lines = [], []
    for how, families in series.items():
        rows, nets = [], {}
        for count, family in families:
            field = Field(family, rounds=rounds, runs=runs, seed=seed)
            initial = float(field.case.job.world.gap[0, :, -1].sum())
            row: list[Any] = [count, initial / family.unit_s]
            for policy in policies:
                nets[policy, count] = (field.result(policy)["pseudo_regret_s"]["mean"] - initial) / family.unit_s
                row.append(nets[policy, count])
            rows.append(row)
        title = f"{how}: pseudo-regret less one pull of every arm, in target steps"
        tables.append(table(title, ["arms", "initial pulls", *policies], rows))
        few, many = families[1][0], families[-1][0]  # five arms over the whole range miss the others' peak
        grown = [f"{p.partition(':')[0]} x{nets[p, many] / nets[p, few]:.1f}" for p in policies if nets[p, few] > 0]
        initial = f"initial pulls x{rows[-1][1] / rows[1][1]:.0f}"
        lines.append(f"{how}, {few} to {many} arms: {', '.join(grown)}; {initial}")
    return answer(_Q_ARMS, "arms", runs, rounds, seed, tables, lines)


def valley(runs: int, rounds: int, seed: int) -> dict[str, Any]:
    """Share of runs that never find the better end."""
    policies = (
        "sp2ec:beta=0.1,reset=0",
        "sp2ec:beta=0.3,reset=0",
        "sp2ec:beta=1,reset=0",
        "sp2ec:beta=0.3,reset=512",
        "sp2ec:beta=0.3,track=ewma",
        "klucb-unimodal:reset=0",
        "global-ucb:reset=0",
        "ucbspec",
        "thompson",
    )
    field = Field(make_family("valley"), rounds=rounds, runs=runs, seed=seed)
    good = [5, 6]
    rows, caught = [], {}
    for policy in policies:
        result = field.result(policy)
        share = field.output(policy).pulls[:, good].sum(axis=1) / rounds
        trapped = int((share < 0.1).sum())
        caught[policy] = trapped / runs
        low, high = wilson(trapped, runs)
        regret = result["pseudo_regret_s"]
        rows.append(
            [
                policy,
                100 * trapped / runs,
                f"{100 * low:.1f}..{100 * high:.1f}",
                regret["mean"] / field.family.unit_s,
                regret["median"] / field.family.unit_s,
                regret["max"] / field.family.unit_s,
                100 * result["relative_loss"],
            ]
        )
    columns = ["policy", "trapped %", "95 %", "mean", "median", "max", "loss %"]
    title = "throughput .85 .64 .51 .43 .36 1.12 1.09 per target step; pseudo-regret in target steps"
    lines = [
        f"SP2ec without resets stays at the wrong end in {percent(caught[policies[0]])} (beta 0.1), "
        f"{percent(caught[policies[1]])} (0.3) and {percent(caught[policies[2]])} (1) of runs: it got bad first draws "
        "from both good arms and never looks beyond a neighbour again.",
        f"A reset every 512 rounds frees it ({percent(caught[policies[3]])} trapped throughout), fading "
        f"{'does not' if caught[policies[4]] > 0.5 * caught[policies[1]] else 'does'} "
        f"({percent(caught[policies[4]])}); searching all arms with the same radius is trapped in "
        f"{percent(caught['global-ucb:reset=0'])}.",
    ]
    return answer(_Q_VALLEY, "valley", runs, rounds, seed, [table(title, columns, rows)], lines)


def beta(runs: int, rounds: int, seed: int) -> dict[str, Any]:
    """Mean, spread and growth of regret per beta, without resets."""
    field = Field(make_family("sharp"), rounds=rounds, runs=runs, seed=seed)
    unit = field.family.unit_s
    rows, found, why = [], {}, set()
    for value in (0.1, 0.2, 0.3, 0.5, 0.707, 1.0, 1.5):
        result = field.result(f"sp2ec:beta={value:g},reset=0")
        regret, fit = result["pseudo_regret_s"], result["growth"]
        found[value] = regret
        why.add(fit["why"].partition("; ")[2] or fit["why"])
        power: dict[str, Any] = fit["power"] or {"g": None, "r2": None}
        log: dict[str, Any] = fit["log"] or {"a": None, "r2": None}
        rows.append(
            [
                f"{value:g}",
                *(regret[key] / unit for key in ("mean", "median", "sd", "max")),
                None if log["a"] is None else log["a"] / unit,
                log["r2"],
                power["g"],
                power["r2"],
                fit["verdict"],
            ]
        )
    columns = ["beta", "mean", "median", "sd", "max", "a of a ln n", "R2", "g of n^g", "R2", "growth"]
    least = min(found, key=lambda value: found[value]["mean"])
    lines = [
        f"least mean at beta = {least:g} ({found[least]['mean'] / unit:.0f} target steps); worst run of {runs}: "
        + ", ".join(f"{found[b]['max'] / unit:.0f} at {b:g}" for b in (0.1, 0.3, 0.707, 1.0)),
        "sd over mean: "
        + ", ".join(f"{found[b]['sd'] / found[b]['mean']:.1f} at {b:g}" for b in (0.1, 0.3, 0.707, 1.0)),
        f"unimodal lower bound: {(field.case.bound or 0.0) / unit:.0f} ln n target steps",
        "growth: " + (why.pop() if len(why) == 1 else "see the table"),
    ]
    return answer(_Q_BETA, "beta", runs, rounds, seed, [table("family sharp, in target steps", columns, rows)], lines)


OUTSIDE = Study(question=_Q_OUTSIDE, runs=400, rounds=512, run=outside)
ARMS = Study(question=_Q_ARMS, runs=60, rounds=5000, run=arms)
VALLEY = Study(question=_Q_VALLEY, runs=300, rounds=20_000, run=valley)
BETA = Study(question=_Q_BETA, runs=100, rounds=100_000, run=beta)
