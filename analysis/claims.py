"""The papers' quantitative claims beside what was measured: `python -m analysis.claims FOLDER... --write FILE`.

Owns the list of the first paper's claims (LibraSpec, arXiv 2608.08721), where each stands, and the tables. Results are
those of `python -m real.paper`; a claim about other models than those measured is judged as the same statement about
ours, and its number itself stays untested. How is `analysis.judges`; the second paper's are `analysis.sp2ec_claims`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from analysis.claim import Claim
from analysis.judges import (
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
from analysis.results import Document, read_results
from analysis.sp2ec_claims import SP2EC_CLAIMS
from specsim.errors import ConfigError, run_cli
from specsim.paths import replace_file

HEADER = ("place", "the paper says", "measured here", "judgement", "the number itself")
TABLES = ("table1", "table2")
CLAIMS = (
    Claim(
        "Abstract, 4.2, 4.3, Tables 1, 2, Figure 1",
        "consistent improvements, greedy and sampling, for FastdLLM, DFlash and DDTree on six targets",
        (*TABLES, "figure1"),
        gain(None, None),
    ),
    Claim("Abstract, 1", "a further 0.5x to 1.5x over the methods without it", TABLES, gain(None, 0)),
    Claim("Abstract, 1", "up to 8.49x over autoregressive decoding", TABLES, highest),
    Claim(
        "3.2, Figure 3",
        "16 tokens at 1K context on an A100: diffusion drafters cut drafting several-fold, to a negligible share",
        ("figure3",),
        drafting,
    ),
    Claim(
        "4.2, Table 1, T = 0",
        "FastdLLM's average speedup improves by 1.42x, 1.57x, 1.29x (Qwen2.5-7B, 14B, 32B; ratio or sum, unsaid)",
        ("table1",),
        ratio("FastdLLM", 0),
    ),
    Claim("4.2, Table 1, T = 1", "by 1.32x, 1.48x, 1.25x", ("table1",), ratio("FastdLLM", 1)),
    Claim(
        "4.2, Table 1",
        "faster than FailFast, G4-style, static FastdLLM and EAGLE-3 in every cell",
        ("table1",),
        fastest_of_all,
    ),
    *(
        Claim(
            f"4.3, Table 2, T = {temperature}",
            f"{method}: {claimed} over the published block, as an average of each target",
            ("table2",),
            gain(method, temperature),
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
            f"4.4, Table 3, T = {temperature}",
            f"thinking mode, DFlash: {claimed}; both temperatures: 9 % to 11 % relative",
            ("table3",),
            gain("DFlash", temperature),
            number="cannot be tested here: no target at hand has a thinking mode",
        )
        for temperature, claimed in ((0, "+0.29 to +0.30"), (1, "+0.27 to +0.29"))
    ),
    Claim("4.5, Table 4", "every alpha improves speedup and tau over the static length", ("table4",), every_alpha),
    Claim(
        "4.5, Table 4",
        "FastdLLM is fastest at alpha 2.0; larger values cost a little",
        ("table4",),
        best_alpha("FastdLLM", 2.0),
    ),
    Claim("4.5, Table 4", "DFlash gains with alpha up to 2.2", ("table4",), best_alpha("DFlash", 2.2)),
    Claim(
        "4.6, Figure 4",
        "faster than the static length at every maximum length, by more at larger ones",
        ("figure4",),
        every_limit,
    ),
    Claim(
        "4.6, Figure 4a",
        "FastdLLM's speedup rises, then is flat from 50 to 70 tokens on",
        ("figure4",),
        plateau("FastdLLM", 50, 70),
    ),
    Claim(
        "4.6, Figure 4b",
        "DFlash's useful range ends at 22 to 24 tokens (block 16)",
        ("figure4",),
        plateau("DFlash", 22, 24),
    ),
    Claim(
        "3.4 (Assumption 3.7), 4.6",
        "confidences are calibrated, worse with depth, at a rate that depends on the drafter (no number given)",
        ("figure4",),
        calibration,
        number="none given",
    ),
    Claim(
        "1, 4.7, Figures 2, 5",
        "four decodes: LibraSpec 2.78 tokens from the best length on average, static 9.48",
        ("figure2", "figure5"),
        deviation,
    ),
    Claim(
        "3.3, 3.4, Appendix A",
        "Theorems 3.2 to 3.6: marginal criterion, unimodal speedup, convergence in finitely many steps",
        number="a matter of proof: see [theory.md](theory.md)",
    ),
    Claim(
        "Appendix B, Table 5",
        "numbers of prompts, as in DFlash's benchmarks",
        number="the table's body is not in the text we have; real/configs/paper/ takes those of DFlash's repository",
    ),
)


@dataclass(frozen=True)
class Paper:
    """A paper's claims, and the marks between which their table stands on a page."""

    title: str
    claims: Sequence[Claim]

    @property
    def begin(self) -> str:
        """Mark before the table."""
        return f"<!-- {self.title}: begin -->"

    @property
    def end(self) -> str:
        """Mark after it."""
        return f"<!-- {self.title}: end -->"


PAPERS = (Paper("paper's claims", CLAIMS), Paper("second paper's claims", SP2EC_CLAIMS))


def table(results: Mapping[str, Document], claims: Sequence[Claim] = CLAIMS) -> str:
    """Every claim as a line of a Markdown table; `not run yet` where no result bears on it."""
    lines = [HEADER, ("---",) * len(HEADER)]
    for claim in claims:
        found = {
            name: claim.judge(document)
            for name, document in results.items()
            if document["experiment"] in claim.experiments
        }
        told = [(f"{name}: {said[0]}", f"{name}: {_word(said[1])}") for name, said in found.items() if said is not None]
        nothing = "not run yet" if claim.experiments else "-"
        said, verdicts = zip(*told or [(nothing, nothing)], strict=True)
        lines.append((claim.place, claim.text, _cell(said), _cell(verdicts), claim.number))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(lines: Sequence[str]) -> str:
    return "<br>".join(line.replace("|", "\\|") for line in lines)


def _word(holds: bool | None) -> str:
    return "no judgement" if holds is None else "holds" if holds else "fails"


def write(file: Path, tables: Sequence[str]) -> None:
    """Put the table of each of `PAPERS` between its marks of a file.

    Raises:
        ConfigError: a file that cannot be read or written, or one without the marks; it stays as it was.
    """
    try:
        page = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read as UTF-8 text ({error}); name docs/claims.md") from None
    for paper, text in zip(PAPERS, tables, strict=True):
        before, begin, rest = page.partition(paper.begin)
        _, end, after = rest.partition(paper.end)
        if not begin or not end:
            raise ConfigError(
                f"{file}: has no place for the table; put {paper.begin} and {paper.end} on lines of their own"
            )
        page = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    with replace_file(file) as temporary:
        temporary.write_text(page, encoding="utf-8")


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path, file_okay=False))
@click.option("--write", "file", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="docs/claims.md")
def main(folders: tuple[Path, ...], file: Path | None) -> None:
    """Judge the papers' claims by the results in folders of python -m real.paper, and print or write the tables."""
    results = read_results(folders)
    tables = [table(results, paper.claims) for paper in PAPERS]
    if file is None:
        click.echo("\n\n".join(tables))
    else:
        write(file, tables)


if __name__ == "__main__":
    run_cli(main, prog_name="python -m analysis.claims")
