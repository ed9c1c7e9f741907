"""Studies of what SP2ec leaves open: resets, arms whose worth moves, and lengths as a second axis."""

from __future__ import annotations

from typing import Any

from specsim.regret.family import make_family
from specsim.regret.study_tools import Field, Study, answer, change_text, percent, table, verdict

_Q_RESET = "What do SP2ec's resets cost where nothing changes, and what do they give where the best arm moves?"
_Q_JOINT = "Does a second axis, the draft length, pay (sp2ec-2d against sp2ec)?"
_Q_DRIFT = "Does fading (track=ewma) follow a moving best arm better than resets?"
_SLOWER = "a positive change is slower"


def reset(runs: int, rounds: int, seed: int) -> dict[str, Any]:
    """SP2ec at several reset intervals against none."""
    families = {
        "sharp": make_family("sharp"),
        "flat": make_family("flat"),
        "valley": make_family("valley"),
        "drift every 1000": make_family("drift", phase_len=1000),
        "drift every 4000": make_family("drift", phase_len=4000),
        "cliff every 1000": make_family("cliff", phase_len=1000),
    }
    base = "sp2ec:reset=0"
    rows, at512 = [], {}
    for name, family in families.items():
        field = Field(family, rounds=rounds, runs=runs, seed=seed)
        rows.append([name, "never", 100 * field.result(base)["relative_loss"], 0.0, "", ""])
        for interval in (128, 512, 2048):
            policy = f"sp2ec:reset={interval}"
            result, change = field.result(policy), field.change(base, policy)
            share = result["reset_pulls_s"] / (result["pseudo_regret_s"]["mean"] or 1.0)
            rows.append(
                [
                    "",
                    interval,
                    100 * result["relative_loss"],
                    None if family.phase_len else 100 * share,
                    change_text(change),
                    verdict(change),
                ]
            )
            if interval == 512:
                at512[name] = change
    columns = ["family", "reset every", "loss %", "of it initial pulls again %", "time vs never %", ""]
    lines = [
        f"reset every 512 rounds: {name}: {change_text(change)} % time, {verdict(change)}"
        for name, change in at512.items()
    ]
    tables = [table(f"SP2ec (beta 0.3), time against the best single arm; {_SLOWER}", columns, rows)]
    return answer(_Q_RESET, "reset", runs, rounds, seed, tables, lines)


def joint(runs: int, rounds: int, seed: int) -> dict[str, Any]:
    """SP2ec over (arm, length) against SP2ec over arms, with and without resets."""
    families = {
        "sharp": make_family("sharp"),
        "flat": make_family("flat"),
        "sharp, 8 draft tokens": make_family("sharp", draft_len=8),
        "short (a shorter draft pays)": make_family("short"),
        "drift every 1000": make_family("drift"),
        "cliff every 1000": make_family("cliff"),
    }
    rows, lines = [], []
    for name, family in families.items():
        field = Field(family, rounds=rounds, runs=runs, seed=seed)
        for settings in ("reset=512", "reset=0", "beta=1,reset=0"):
            flat, both = f"sp2ec:{settings}", f"sp2ec-2d:{settings}"
            change = field.change(flat, both)
            rows.append(
                [
                    name if settings == "reset=512" else "",
                    settings,
                    100 * field.result(flat)["relative_loss"],
                    100 * field.result(both)["relative_loss"],
                    change_text(change),
                    verdict(change),
                ]
            )
            if settings == "reset=512":
                lines.append(f"{name}: sp2ec-2d {change_text(change)} % time, {verdict(change)}")
    columns = ["family", "parameters", "sp2ec loss %", "sp2ec-2d loss %", "change %", ""]
    tables = [table(f"time against the best single arm at full length; {_SLOWER}", columns, rows)]
    return answer(_Q_JOINT, "joint", runs, rounds, seed, tables, lines)


def drift(runs: int, rounds: int, seed: int) -> dict[str, Any]:
    """Fading and resets against plain SP2ec."""
    families = {
        "sharp (nothing moves)": make_family("sharp"),
        "flat (nothing moves)": make_family("flat"),
        "drift every 250": make_family("drift", phase_len=250),
        "drift every 1000": make_family("drift", phase_len=1000),
        "drift every 4000": make_family("drift", phase_len=4000),
        "cliff every 1000": make_family("cliff", phase_len=1000),
    }
    base = "sp2ec:reset=512"
    others = (
        "sp2ec:reset=0",
        "sp2ec:track=ewma,halflife=64",
        "sp2ec:track=ewma,halflife=256",
        "sp2ec:track=ewma,halflife=1024",
        "global-ucb:track=ewma,halflife=256",
    )
    rows, lines = [], []
    for name, family in families.items():
        field = Field(family, rounds=rounds, runs=runs, seed=seed)
        best: tuple[float, str] = (0.0, base)
        rows.append([name, base, 100 * field.result(base)["relative_loss"], "", ""])
        for policy in others:
            change = field.change(base, policy)
            rows.append(["", policy, 100 * field.result(policy)["relative_loss"], change_text(change), verdict(change)])
            best = min(best, (change["mean"], policy))
        default = field.change(base, others[2])
        lines.append(
            f"{name}: ewma (halflife 256) {change_text(default)} % time, {verdict(default)}; "
            f"fastest here: {best[1]} ({percent(best[0], 2)})"
        )
    lines.append(
        "drift can be climbed from the old peak; in cliff the far arms give no direction, a local search is lost"
    )
    columns = ["family", "policy", "loss %", f"change from {base} %", ""]
    tables = [
        table(f"time against the best single arm (negative: faster than any single arm); {_SLOWER}", columns, rows)
    ]
    return answer(_Q_DRIFT, "drift", runs, rounds, seed, tables, lines)


RESET = Study(question=_Q_RESET, runs=60, rounds=8192, run=reset)
JOINT = Study(question=_Q_JOINT, runs=40, rounds=8192, run=joint)
DRIFT = Study(question=_Q_DRIFT, runs=60, rounds=8192, run=drift)
