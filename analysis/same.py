"""Did two runs decode the same requests? And what else lies between two runs.

Owns what counts as proof: one run; traces that are the same file; prompts with the same digest or the same ids of the
same dataset. Anything less is no pair.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from analysis.perrequest import OUTPUTS, Requests
from analysis.runs import Run

BLOCK = 1 << 20
CONDITIONS = ("temperature", "max_new_tokens", "dtype", "device", "threads", "draft_sampling")  # that change speed


class Same(NamedTuple):
    """Whether requests are the same, and how that was found or why they are not."""

    paired: bool
    how: str


def same_requests(one: Run, mine: Requests, other: Run, others: Requests) -> Same:
    """Whether two runs' requests are the same, number for number.

    Args:
        one, other: the runs.
        mine, others: requests of the controllers that are compared.
    """
    found = Same(True, "both are of one run") if one is other else _runs(one, other)
    if found.paired and mine.request.tolist() != others.request.tolist():
        return Same(False, f"{found.how}, but they have different requests in the log")
    return found


def _runs(one: Run, other: Run) -> Same:
    if (one.kind == "replay") != (other.kind == "replay"):
        return Same(False, "one is a replay, the other a live run")
    return _traces(one, other) if one.kind == "replay" else _prompts(one, other)


def _traces(one: Run, other: Run) -> Same:
    if one.trace is None or other.trace is None:
        gone = one if one.trace is None else other
        return Same(False, f"the trace of {gone.name} is not there any more, so it cannot be compared")
    if one.trace.resolve() == other.trace.resolve():
        return Same(True, f"both replayed {one.trace}")
    if _digest(one.trace) == _digest(other.trace):
        return Same(True, f"{one.trace} and {other.trace} are the same, byte for byte")
    return Same(False, f"{one.trace} and {other.trace} differ")


def _prompts(one: Run, other: Run) -> Same:
    configs = [_config(run) for run in (one, other)]
    if one.target != other.target:
        return Same(False, f"the targets differ ({one.target} and {other.target}), and with them the outputs")
    digests = [config.get("prompts_sha256") for config in configs]
    if all(digests):
        same = digests[0] == digests[1]
        return Same(same, f"the prompts' digests {'are the same' if same else 'differ'} (prompts_sha256 in run.json)")
    datasets = [_dataset(config) for config in configs]
    if datasets[0] != datasets[1]:
        return Same(False, f"the datasets differ ({datasets[0]} and {datasets[1]})")
    names = [_ids(run, config) for run, config in zip((one, other), configs, strict=True)]
    if None in names:
        return Same(False, "neither a digest nor the ids of the prompts are in both folders")
    same = names[0] == names[1]
    return Same(same, f"the prompts' ids, of dataset {one.dataset}, {'are the same' if same else 'differ'}")


def _config(run: Run) -> Mapping[str, Any]:
    """Settings of a live run; a validation keeps them in run.json beside its results."""
    if isinstance(run.document.get("config"), dict):
        return run.document["config"]
    return json.loads((run.folder / "run.json").read_text(encoding="utf-8"))["config"]


def _dataset(config: Mapping[str, Any]) -> Any:
    """What the prompts were taken from and how they were changed; which of them were taken, their ids say."""
    data = config.get("dataset")
    if not isinstance(data, dict):
        return data
    kept = {key: value for key, value in data.items() if key != "requests" and value is not None}
    return kept.get("data") if set(kept) <= {"data"} else kept


def _ids(run: Run, config: Mapping[str, Any]) -> list[str] | None:
    """Ids of the prompts in order; None where none of its files has them."""
    if isinstance(config.get("prompts"), list):
        return config["prompts"]
    outputs = run.folder / OUTPUTS
    if not outputs.is_file():
        return None
    found: dict[int, str] = {}
    try:
        with outputs.open(encoding="utf-8") as lines:
            for line in lines:
                one = json.loads(line)
                found[one["request"]] = one["id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return [found[number] for number in sorted(found)]


def cautions(one: Run, other: Run) -> tuple[str, ...]:
    """What an interval over requests does not hold, between two runs."""
    if one is other:
        return ()
    if (one.kind == "replay") != (other.kind == "replay"):
        return ("one is modelled, the other measured",)
    if one.kind == "replay":
        return () if one.latency == other.latency else ("they are priced by different latency models",)
    found = ["measured one after the other: what the machine did in between is in no interval"]
    mine, others = _config(one), _config(other)
    for key in CONDITIONS:
        if mine.get(key, others.get(key)) != others.get(key, mine.get(key)):
            found.append(f"{key} differs ({mine[key]} and {others[key]})")
    return tuple(found)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
