"""`python -m specsim.theory`: the verdict table, its exit status, and `eval` line by line."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from specsim import theory
from specsim.errors import ConfigError
from specsim.theory import __main__ as cli
from specsim.theory import report
from specsim.theory.evaluate import KINDS, evaluate
from specsim.theory.record import FALSE, HOLDS, VERDICTS, Statement, contradiction
from specsim.theory.statements import STATEMENTS, check_all
from tests.conftest import ROOT

IDS = (
    "LS 3.2", "LS 3.3", "LS 3.4", "LS 3.5", "LS 3.6", "LS Alg 1", "LS toward", "LS A3.7", "SP 3.5", "SP premise",
    "SP regret", "R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9",
)  # fmt: skip


@pytest.fixture(scope="module")
def results() -> list[Any]:
    return check_all(STATEMENTS)


def theory_command(*args: str, stdin: str = "", columns: int = 80) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "specsim.theory", *args], cwd=ROOT, input=stdin, capture_output=True,
        text=True, timeout=120, check=False, env={"COLUMNS": str(columns), "PATH": "", "NO_COLOR": "1"},
    )  # fmt: skip


def test_every_statement_is_there_with_all_its_parts() -> None:
    assert tuple(statement.id for statement in STATEMENTS) == IDS
    for statement in STATEMENTS:
        assert statement.verdict in VERDICTS
        assert statement.printed
        assert statement.assumptions
        assert statement.proof
        assert (statement.counterexample is None) == (statement.shown == "")
        if statement.verdict != HOLDS:
            assert statement.counterexample is not None
            assert statement.repaired


@pytest.mark.parametrize("index", range(len(STATEMENTS)), ids=IDS)
def test_checker_agrees_with_the_recorded_verdict(index: int, results: list[Any]) -> None:
    statement, finding, fault = results[index]
    assert fault == ""
    assert finding.instances > 0
    assert finding.repaired_violations == 0
    assert (finding.violations == 0) == (statement.verdict == HOLDS)


@pytest.mark.parametrize(
    ("number", "other"),
    [
        (0, {"p": ["1/2", "1/2"], "b": 1, "sigma": 0, "d": 1, "to": 2}),  # the added token neither helps nor hurts
        (1, {"p": [1, 1, 1], "b": 1, "sigma": 0, "d": 3, "to": 2}),
        (2, {"p": [1, 1], "b": 1, "sigma": 0, "d": 1, "to": 2}),
        (3, {"p": ["1/2", "1/2"], "T": [1, 2, 3], "sigma": 1}),
        (4, {"tail": "1/2", "c": 1, "b": 1, "sigma": 0}),
        (5, {"p": ["1/2", 0, 0, 0, 0], "c": 1, "b": 1, "sigma": 0, "n": 1, "got": 1, "best": [1]}),
        (6, {"p": ["1/2", "3/4", "1/2", "1/2"], "b": 2, "sigma": 0, "d": 1, "to": 2}),
        (7, {"rounds": [[1, 1], [1, 1]], "q": [1, 1], "c": "2/5", "b": 1}),
        (8, {"mu": [1, 2, 3], "cost": [1, 2, 3]}),
        (9, {"acceptance": [0, "1/2", 1], "L": 1, "cost": [1, 2, 3]}),
        (10, {"beta": 1, "exponent": 2}),
    ],
)
def test_a_wrong_counterexample_is_noticed(number: int, other: dict[str, Any]) -> None:
    """Each checker recomputes what it is handed; the recorded one could otherwise rot unseen."""
    finding = STATEMENTS[number].checker(other)
    assert not finding.confirmed
    assert "is none" in contradiction(STATEMENTS[number], finding)


def altered(statement: Statement, verdict: str) -> Statement:
    return dataclasses.replace(statement, verdict=verdict)


def test_a_wrong_verdict_makes_the_exit_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = (altered(STATEMENTS[2], HOLDS), altered(STATEMENTS[12], FALSE), STATEMENTS[10])
    monkeypatch.setattr(cli, "STATEMENTS", wrong)
    status = cli.main.main([], standalone_mode=False)
    assert status == 1
    rows = check_all(wrong)
    assert "the printed form fails" in rows[0][2]
    assert "no violation" in rows[1][2]
    assert rows[2][2] == ""
    document = report.document(rows, 0.0)
    assert document["contradictions"] == 2
    assert [row["agrees"] for row in document["statements"]] == [False, False, True]


def test_a_failing_repair_is_noticed(results: list[Any]) -> None:
    statement, finding, _ = results[2]
    assert "repaired form fails in 3" in contradiction(statement, dataclasses.replace(finding, repaired_violations=3))


@pytest.mark.parametrize("columns", [80, 120])
def test_table_fits(columns: int, results: list[Any]) -> None:
    out = io.StringIO()
    Console(width=columns, file=out).print(report.verdict_table(results))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= columns
    for statement in STATEMENTS:
        assert any(line.strip().startswith(statement.id) for line in lines)
    assert "…" not in out.getvalue()


def test_table() -> None:
    done = theory_command()
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "20 statements checked" in done.stdout


def test_json() -> None:
    done = theory_command("--json")
    assert done.returncode == 0

    def refuse(text: str) -> Any:
        raise AssertionError(text)

    document = json.loads(done.stdout, parse_constant=refuse)
    assert document["schema"] == "specsim.theory/1"
    assert document["contradictions"] == 0
    assert [row["id"] for row in document["statements"]] == list(IDS)
    row = document["statements"][2]
    assert row["verdict"] == FALSE
    assert row["finding"]["facts"]["bad_extensions"] > 0 == row["finding"]["facts"]["bad_rollbacks"]
    assert row["finding"]["first_violation"]["to"] > row["finding"]["first_violation"]["d"]


def test_json_before_a_subcommand_is_refused() -> None:
    done = theory_command("--json", "eval")
    assert done.returncode == 2
    assert "--json" in done.stderr


# --- eval ------------------------------------------------------------------------------------------------------------

ANSWERS = [
    (
        {"kind": "eta", "p": ["1/2", "1/2"], "c": "1", "b": "1", "sigma": 1},
        {"M": ["1", "3/2", "7/4"], "eta": ["1", "3/4", "7/12"], "dstar": [0]},
    ),
    (
        {"kind": "eta", "p": [1, 1, 0.9, 1], "T": [1, 2, 2, "3", 3.0], "sigma": 0},
        {"M": ["0", "1", "2", "29/10", "19/5"], "eta": [None, "1/2", "1", "29/30", "19/15"], "dstar": [4]},
    ),
    (
        {"kind": "eps", "p": [1, 0, 0, 0, 0, 0], "c": 1, "b": 1, "sigma": 1},
        {"alpha": ["1", "3/2", "2", "5/2", "3", "7/2"], "eps_printed": [1, 1, 2, 3, 4, 5],
         "eps_corrected": [0, 1, 2, 3, 4, 5, 6], "dstar": [0, 1]},
    ),
    (
        {"kind": "eps", "p": [0, 0.5], "c": 1, "b": 1, "sigma": 0},
        {"alpha": [None, None], "eps_printed": [0, 2], "eps_corrected": [1, 2], "dstar": [1, 2]},
    ),
    (
        {"kind": "alg1", "q": ["1"] * 24, "alpha": "2", "n": 4, "dmax": 15},
        {"d": 15, "blocks": 4, "iterations": 6, "trace": [[4, 6], [6, 8], [8, 10], [10, 12], [12, 14], [14, 16]]},
    ),
    ({"kind": "alg1", "q": [0.1], "alpha": 2, "n": 8, "dmax": 8}, {"d": 8, "blocks": 1, "iterations": 0, "trace": []}),
    (
        {"kind": "lambda", "contexts": [["1/2", [1, "1/3", "3/4"]], ["1/2", ["1/4", 1, "2/3"]]], "c": "1/5", "b": 1},
        {"lambda": "25/18", "d": [2, 0], "ratio_throughput": "35/26", "best_fixed": [2, "115/84"]},
    ),
    (
        {"kind": "lambda", "contexts": [[1, [1, 1, "2/3", 1]], [1, ["1/3"]]], "c": 0.25, "b": 1.0},
        {"lambda": "16/9", "d": [4, 0], "ratio_throughput": "68/39", "best_fixed": [2, "13/9"]},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "answer"), ANSWERS)
def test_answers(request_: dict[str, Any], answer: dict[str, Any]) -> None:
    got = evaluate(json.dumps(request_))
    assert got == answer
    assert list(got) == list(answer)


def test_a_decimal_means_what_is_written() -> None:
    got = evaluate('{"kind":"eta","p":[0.1],"c":0.3,"b":"0.7","sigma":1}')
    assert got["eta"] == ["10/7", "11/10"]


ROUND = {"kind": "eta", "p": ["1/2"], "c": "1", "b": "1", "sigma": 1}
ALG1 = {"kind": "alg1", "q": [1, 1, 1], "alpha": 2, "n": 1, "dmax": 3}
LAMBDA = {"kind": "lambda", "contexts": [[1, ["1/2"]]], "c": 1, "b": 1}
BANDIT = {"kind": "bandit", "policy": "sp2ec", "params": {}, "rewards": [1, 2], "costs": [1, 2], "rounds": 3}
BAD = [
    ("nope", "not JSON", "one JSON object per line"),
    ("[1]", "[1] is no request", "one JSON object"),
    ('{"kind":"eta","kind":"eps"}', "'kind': given twice", "once"),
    ('{"kind":"eta","p":[NaN],"c":1,"b":1,"sigma":1}', "NaN", "finite"),
    ({}, "'kind': missing", "eta, eps, alg1, lambda, bandit"),
    ({"kind": "etas"}, "'kind': \"etas\"", "eta, eps"),
    ({**ROUND, "extra": 1}, "'extra': unknown", "kind, p, c, b, sigma"),
    ({"kind": "eta", "p": [1], "c": 1, "sigma": 1}, "'b': missing", "or T in place of c and b"),
    ({**ROUND, "T": [1, 2]}, "'c': unknown", "kind, p, T, sigma"),
    ({**ROUND, "p": ["3/2"]}, "'p[0]': \"3/2\"", "[0, 1]"),
    ({**ROUND, "p": ["1/0"]}, "'p[0]'", "[0, 1]"),
    ({**ROUND, "p": [True]}, "'p[0]': true", "[0, 1]"),
    ({**ROUND, "p": "1/2"}, "'p': \"1/2\"", "a list"),
    ({**ROUND, "p": [0] * 5000}, "'p'", "1024"),
    ({**ROUND, "p": ["1e999999999"]}, "'p[0]'", "number"),
    ({**ROUND, "p": [1e999]}, "Infinity", "finite"),
    ({**ROUND, "p": [], "sigma": 0}, "'p': []", "at least one"),
    ({**ROUND, "c": 0}, "'c': 0", "> 0"),
    ({**ROUND, "b": -1}, "'b': -1", ">= 0"),
    ({**ROUND, "b": 0}, "'b': 0", "> 0 when sigma is 1"),
    ({**ROUND, "b": None}, "'b': null", "a string like '3/4'"),
    ({**ROUND, "sigma": 2}, "'sigma': 2", "[0, 1]"),
    ({**ROUND, "sigma": "1"}, "'sigma': \"1\"", "[0, 1]"),
    ({"kind": "eta", "p": [1], "T": [1], "sigma": 1}, "'T': 1 numbers", "2 numbers"),
    ({"kind": "eta", "p": [1], "T": [1, 0], "sigma": 1}, "'T[1]': 0", "> 0"),
    ({"kind": "eta", "p": [1], "T": [0, 1], "sigma": 1}, "'T[0]': 0", "sigma is 1"),
    ({**ALG1, "alpha": 0}, "'alpha': 0", "> 0"),
    ({**ALG1, "n": 0}, "'n': 0", "[1, 1024]"),
    ({**ALG1, "dmax": 2.0}, "'dmax': 2.0", "an integer"),
    ({**ALG1, "q": [1, 1], "dmax": 9}, "'q': q has 2 confidences and the rule looks at position 3", "at most dmax"),
    ({**LAMBDA, "contexts": []}, "'contexts': []", "[weight, [p_1, ..]] pairs"),
    ({**LAMBDA, "contexts": [[1]]}, "'contexts[0]': [1]", "a pair"),
    ({**LAMBDA, "contexts": [[0, ["1/2"]]]}, "'contexts[0][0]': 0", "> 0"),
    ({**LAMBDA, "contexts": [[1, [2]]]}, "'contexts[0][1][0]': 2", "[0, 1]"),
    ({**LAMBDA, "b": 0}, "'b': 0", "> 0"),
    ({**BANDIT, "costs": [1, 0]}, "'costs[1]': 0", "> 0"),
    ({**BANDIT, "rewards": [1]}, "'rewards': 1 rewards", "2 rewards"),
    ({**BANDIT, "rewards": [1, []]}, "'rewards[1]': []", "a list of them"),
    ({**BANDIT, "rewards": [1, [-1]]}, "'rewards[1]': [-1]", ">= 0"),
    ({**BANDIT, "policy": "sp3ec"}, "'sp3ec'", "sp2ec"),
    ({**BANDIT, "policy": 1}, "'policy': 1", "name"),
    ({**BANDIT, "params": []}, "'params': []", "an object"),
    ({**BANDIT, "rounds": -1}, "'rounds': -1", "[0, 1000000]"),
]


@pytest.mark.parametrize(("line", "found", "allowed"), BAD, ids=range(len(BAD)))
def test_bad_requests_say_what_is_allowed(line: str | dict[str, Any], found: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        evaluate(line if isinstance(line, str) else json.dumps(line))
    message = str(caught.value)
    assert found in message
    assert allowed in message.partition("allowed")[2]


def test_eval_answers_in_order_and_goes_on_after_bad_lines() -> None:
    lines = [json.dumps(request) for request, _ in ANSWERS]
    stdin = "\n".join([*lines[:2], "nope", "", *lines[2:], json.dumps({**ROUND, "c": 0})]) + "\n"
    done = theory_command("eval", stdin=stdin)
    assert done.returncode == 2
    assert done.stderr == ""
    got = [json.loads(line) for line in done.stdout.splitlines()]
    answers = [answer for _, answer in ANSWERS]
    assert got[:2] == answers[:2]
    assert got[3:-1] == answers[2:]
    assert list(got[2]) == list(got[-1]) == ["error"]
    assert got[2]["error"].startswith("line 3: ")
    assert got[-1]["error"].startswith(f"line {len(lines) + 3}: key 'c': 0; allowed: ")


def test_eval_of_good_lines_and_of_nothing() -> None:
    assert theory_command("eval", stdin=json.dumps(ROUND)).returncode == 0
    done = theory_command("eval")
    assert (done.returncode, done.stdout) == (0, "")


def test_eval_of_bytes_that_are_no_text() -> None:
    result = CliRunner().invoke(
        cli.main, ["eval"], input=b"\xff\n" + json.dumps(ROUND).encode() + b"\n", standalone_mode=False
    )
    assert result.return_value == 2
    first, second = result.output.splitlines()
    assert "line 1: not UTF-8" in json.loads(first)["error"]
    assert json.loads(second)["dstar"] == [0]


KEYS = st.sampled_from(("kind", "p", "c", "b", "sigma", "T", "q", "alpha", "n", "dmax", "contexts"))
VALUES = st.one_of(
    st.sampled_from([*KINDS]), st.integers(-2, 5), st.none(), st.floats(0, 2),
    st.lists(st.sampled_from(("1/2", 0, 1, "x")), max_size=4),
)  # fmt: skip


@given(st.dictionaries(KEYS, VALUES))
def test_eval_never_crashes(request_: dict[str, Any]) -> None:
    try:
        answer: dict[str, Any] = evaluate(json.dumps(request_))
    except ConfigError as error:
        answer = {"error": str(error)}
    json.dumps(answer, allow_nan=False)
    assert "allowed" in answer.get("error", "allowed")


# --- the functions refuse the same things ----------------------------------------------------------------------------


def test_exact_functions_refuse_nonsense() -> None:
    line, t = theory.Affine(1, 1), theory
    for call, text in (
        (lambda: t.frac(True), "no number"),
        (lambda: t.frac(float("nan")), "no number"),
        (lambda: t.frac("1/0"), "no number"),
        (lambda: t.eta([2], line, 1), "no probability"),
        (lambda: t.eta([1], t.Affine(0, 1), 1), "c > 0"),
        (lambda: t.eta([1], [1], 1), "2, T_0..T_1"),
        (lambda: t.eta([1], [1, -1], 1), "times >= 0"),
        (lambda: t.eta([1], [0, 1], 1), "T_d > 0"),
        (lambda: t.eta([1], line, 2), "0 (accepted draft tokens) or 1"),
        (lambda: t.optimal_lengths([], line, 0), "at least one position"),
        (lambda: t.repaired_step([], line, 0), "at least one position"),
        (lambda: t.algorithm1([1], 0, 1, 1), "> 0"),
        (lambda: t.algorithm1([1], 2, 1, 5), "at least 3"),
        (lambda: t.dinkelbach([], line), "at least one"),
        (lambda: t.dinkelbach([(1, [1])], [0, 1]), "T_d > 0"),
        (lambda: t.kl_inf(["1/2"], 1), "adds up to 1/2"),
    ):
        with pytest.raises(ConfigError) as caught:
            call()
        assert text in str(caught.value)


def test_the_page_has_the_verdicts() -> None:
    text = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    for statement in STATEMENTS:
        assert text.count(f"| {statement.id} | {statement.verdict} |") == 1, statement.id
    for kind in KINDS:
        assert f"| `{kind}` |" in text
