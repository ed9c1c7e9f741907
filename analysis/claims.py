"""The first paper's quantitative claims beside what was measured: `python -m analysis.claims FOLDER... --write FILE`.

Owns the list of claims (LibraSpec, arXiv 2608.08721), where each stands, and the table. Results are those of
`python -m real.paper`; a claim about other models than those measured is judged as the same statement about ours, and
its number itself stays untested. How is `analysis.judges`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from analysis.judges import (
    Document,
    Judge,
    best_alpha,
    calibration,
    deviation,
    drafting,
    every_alpha,
    every_limit,
    fastest_of_all,
    gain,
    highest,
    plateau,
    ratio,
)
from specsim.errors import ConfigError, run_cli
from specsim.paths import replace_file

BEGIN, END = "<!-- paper's claims: begin -->", "<!-- paper's claims: end -->"
HEADER = ("place", "the paper says", "measured here", "judgement", "the number itself")
THEIR_MODELS = "cannot be tested here: needs the paper's models and a GPU"


@dataclass(frozen=True, kw_only=True)
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
    number: str = THEIR_MODELS


TABLES = ("table1", "table2")
CLAIMS = (
    Claim(
        place="Abstract, 4.2, 4.3, Tables 1, 2, Figure 1",
        text="consistent improvements, greedy and sampling, for FastdLLM, DFlash and DDTree on six targets",
        experiments=(*TABLES, "figure1"),
        judge=gain(None, None),
    ),
    Claim(
        place="Abstract, 1",
        text="a further 0.5x to 1.5x over the methods without it",
        experiments=TABLES,
        judge=gain(None, 0),
    ),
    Claim(place="Abstract, 1", text="up to 8.49x over autoregressive decoding", experiments=TABLES, judge=highest),
    Claim(
        place="3.2, Figure 3",
        text="16 tokens at 1K context on an A100: diffusion drafters cut drafting several-fold, to a negligible share",
        experiments=("figure3",),
        judge=drafting,
    ),
    Claim(
        place="4.2, Table 1, T = 0",
        text="FastdLLM's average speedup improves by 1.42x, 1.57x, 1.29x (Qwen2.5-7B, 14B, 32B; ratio or sum, unsaid)",
        experiments=("table1",),
        judge=ratio("FastdLLM", 0),
    ),
    Claim(
        place="4.2, Table 1, T = 1",
        text="by 1.32x, 1.48x, 1.25x",
        experiments=("table1",),
        judge=ratio("FastdLLM", 1),
    ),
    Claim(
        place="4.2, Table 1",
        text="faster than FailFast, G4-style, static FastdLLM and EAGLE-3 in every cell",
        experiments=("table1",),
        judge=fastest_of_all,
    ),
    *(
        Claim(
            place=f"4.3, Table 2, T = {temperature}",
            text=f"{method}: {claimed} over the published block, as an average of each target",
            experiments=("table2",),
            judge=gain(method, temperature),
        )
        for method, temperature, claimed in (
            ("DFlash", 0, "+0.39 to +0.69"),
            ("DFlash", 1, "+0.39 to +0.67"),
            ("DDTree", 0, "+0.39 to +0.69"),
            ("DDTree", 1, "+0.45 to +0.56"),
        )
    ),
    *(
        Claim(
            place=f"4.4, Table 3, T = {temperature}",
            text=f"thinking mode, DFlash: {claimed}; both temperatures: 9 % to 11 % relative",
            experiments=("table3",),
            judge=gain("DFlash", temperature),
            number="cannot be tested here: no target at hand has a thinking mode",
        )
        for temperature, claimed in ((0, "+0.29 to +0.30"), (1, "+0.27 to +0.29"))
    ),
    Claim(
        place="4.5, Table 4",
        text="every alpha improves speedup and tau over the static length",
        experiments=("table4",),
        judge=every_alpha,
    ),
    Claim(
        place="4.5, Table 4",
        text="FastdLLM is fastest at alpha 2.0; larger values cost a little",
        experiments=("table4",),
        judge=best_alpha("FastdLLM", 2.0),
    ),
    Claim(
        place="4.5, Table 4",
        text="DFlash gains with alpha up to 2.2",
        experiments=("table4",),
        judge=best_alpha("DFlash", 2.2),
    ),
    Claim(
        place="4.6, Figure 4",
        text="faster than the static length at every maximum length, by more at larger ones",
        experiments=("figure4",),
        judge=every_limit,
    ),
    Claim(
        place="4.6, Figure 4a",
        text="FastdLLM's speedup rises, then is flat from 50 to 70 tokens on",
        experiments=("figure4",),
        judge=plateau("FastdLLM", 50, 70),
    ),
    Claim(
        place="4.6, Figure 4b",
        text="DFlash's useful range ends at 22 to 24 tokens (block 16)",
        experiments=("figure4",),
        judge=plateau("DFlash", 22, 24),
    ),
    Claim(
        place="3.4 (Assumption 3.7), 4.6",
        text="confidences are calibrated, worse with depth, at a rate that depends on the drafter (no number given)",
        experiments=("figure4",),
        judge=calibration,
        number="none given",
    ),
    Claim(
        place="1, 4.7, Figures 2, 5",
        text="four decodes: LibraSpec 2.78 tokens from the best length on average, static 9.48",
        experiments=("figure2", "figure5"),
        judge=deviation,
    ),
    Claim(
        place="3.3, 3.4, Appendix A",
        text="Theorems 3.2 to 3.6: marginal criterion, unimodal speedup, convergence in finitely many steps",
        number="a matter of proof: see [theory.md](theory.md)",
    ),
    Claim(
        place="Appendix B, Table 5",
        text="numbers of prompts, as in DFlash's benchmarks",
        number="the table's body is not in the text we have; real/configs/paper/ takes those of DFlash's repository",
    ),
)


def read_results(folders: Sequence[Path]) -> dict[str, Document]:
    """results.json of each folder, by the folder's name.

    Raises:
        ConfigError: a folder without one, or one of another kind.
    """
    found = {}
    for folder in folders:
        try:
            document = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder}: no results there ({error}); make them with python -m real.paper") from None
        if not isinstance(document, dict) or document.get("schema") != "specsim.paper/1":
            raise ConfigError(f"{folder}/results.json: not the results of python -m real.paper")
        found[folder.name] = document
    return found


def table(results: Mapping[str, Document]) -> str:
    """Every claim as a line of a Markdown table; `not run yet` where no result bears on it."""
    lines = [HEADER, ("---",) * len(HEADER)]
    for claim in CLAIMS:
        said, verdicts = [], []
        for name, document in results.items():
            finding = claim.judge(document) if document["experiment"] in claim.experiments else None
            if finding is not None:
                said.append(f"{name}: {finding[0]}")
                verdicts.append(f"{name}: {_word(finding[1])}")
        nothing = "not run yet" if claim.experiments else "-"
        said, verdicts = said or [nothing], verdicts or [nothing]
        lines.append((claim.place, claim.text, "<br>".join(said), "<br>".join(verdicts), claim.number))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _word(holds: bool | None) -> str:
    return "no judgement" if holds is None else "holds" if holds else "fails"


def write(file: Path, text: str) -> None:
    """Put the table between the marks of a file.

    Raises:
        ConfigError: a file without the two marks.
    """
    before, begin, rest = file.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"{file}: has no place for the table; put {BEGIN} and {END} on lines of their own")
    with replace_file(file) as temporary:
        temporary.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


@click.command()
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path, file_okay=False))
@click.option("--write", "file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="docs/claims.md")
def main(folders: tuple[Path, ...], file: Path | None) -> None:
    """Judge the paper's claims by the results in folders of python -m real.paper, and print or write the table."""
    text = table(read_results(folders))
    if file is None:
        click.echo(text)
    else:
        write(file, text)


if __name__ == "__main__":
    run_cli(main, prog_name="python -m analysis.claims")
