"""The command `python -m specsim.synth`: options to a `SynthSpec`, and the file. Owns no formula."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from specsim.errors import ConfigError
from specsim.latency import LatencyModel, load_latency
from specsim.schema import TraceMeta
from specsim.synth import DISTORTIONS, KINDS, SynthSpec, synth_chunks, synth_meta
from specsim.writer import write_trace


@click.command()
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--requests", default=16, show_default=True, help="Number of requests.")
@click.option("--positions", default=256, show_default=True, help="Output tokens of each request.")
@click.option("--max-draft-len", default=16, show_default=True, help="Longest draft a row holds, in tokens.")
@click.option("--block-len", default=1, show_default=True, help="Tokens one drafter pass yields.")
@click.option("--prompt-len", type=int, help="Record ctx_len = prompt length + pos.")
@click.option("--seed", default=0, show_default=True, help="Seed of every draw.")
@click.option("--top-k", default=0, show_default=True, help="Tree trace: tokens listed per draft position.")
@click.option("--alpha", default=0.8, show_default=True, help="Acceptance probability (easy positions, mean, centre).")
@click.option("--decay", type=float, help="Factor on p per draft position.  [default: 0.95 geometric, miscalibrated]")
@click.option("--alpha-hard", default=0.3, show_default=True, help="two-regime: p at hard positions.")
@click.option("--stay-easy", default=0.95, show_default=True, help="two-regime: probability that easy follows easy.")
@click.option("--stay-hard", default=0.9, show_default=True, help="two-regime: probability that hard follows hard.")
@click.option("--concentration", default=4.0, show_default=True, help="beta: a + b; small is bimodal.")
@click.option("--persistence", default=0.9, show_default=True, help="markov: correlation of neighbouring positions.")
@click.option("--spread", default=1.0, show_default=True, help="markov: standard deviation, in logits.")
@click.option("--distort", type=click.Choice(list(DISTORTIONS)), help="How q departs from p.")
@click.option("--q-shift", type=float, help="Shift of q, in logits.")
@click.option("--q-drift", type=float, help="Drift of q per draft position, in logits.")
@click.option("--q-noise", type=float, help="Noise of q, standard deviation in logits.")
@click.option("--latency", help="Latency model to embed: a JSON file or preset:NAME.")
@click.option("--c-s", type=float, help="Embed verify(s) = c*s + b: seconds per token position c.")
@click.option("--b-s", type=float, help="... its constant b, in seconds.")
@click.option("--pass-s", type=float, help="... seconds of one drafter pass.")
@click.option("--overhead-s", type=float, help="... overhead of a round, in seconds.")
def main(
    kind: str,
    out: Path,
    latency: str | None,
    c_s: float | None,
    b_s: float | None,
    pass_s: float | None,
    overhead_s: float | None,
    **settings: Any,
) -> None:
    """Write a synthetic trace with known acceptance probabilities to OUT."""
    spec = SynthSpec(kind=kind, **settings)
    inline = {"c_s": c_s, "b_s": b_s, "draft_pass_s": pass_s, "overhead_s": overhead_s}
    meta = synth_meta(spec, _latency(latency, {k: v for k, v in inline.items() if v is not None}, spec))
    write_trace(out, meta, synth_chunks(spec))
    click.echo(_summary(out, meta, spec))


def _latency(source: str | None, inline: Mapping[str, float], spec: SynthSpec) -> dict[str, Any] | None:
    if source is not None and inline:
        raise ConfigError("--latency and --c-s/--b-s/--pass-s/--overhead-s exclude each other; give one of the two")
    if source is not None:
        model = load_latency(source)
    elif not inline:
        return None
    elif "b_s" not in inline:
        raise ConfigError("--c-s, --pass-s and --overhead-s need --b-s, the constant part of a verification in seconds")
    else:
        model = LatencyModel.affine(**{"c_s": 0.0, **inline})
    if model.ctx_s > 0 and spec.prompt_len is None:
        raise ConfigError(
            "the latency model charges context (ctx_s > 0): give --prompt-len so that ctx_len is recorded"
        )
    return model.to_dict()


def _summary(out: Path, meta: TraceMeta, spec: SynthSpec) -> str:
    priced = "embedded" if meta.latency is not None else "none (give --latency when you replay)"
    return f"wrote {out}: {spec.requests} requests x {spec.positions} positions, kind {spec.kind}, latency {priced}"
