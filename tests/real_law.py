"""The exact law of a decode: every branch of its luck, run through the real loop. Shared by tests and vectors.

`Branching` plays `real.draws.KeyedDraws` with unknown uniforms: of each it remembers the interval it must lie in, so a
number that serves twice is one number here too. `branches` runs something again and again until all of it was seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest
import torch

from real.drafters.model import ModelDrafter
from real.draws import ACCEPT_STREAM, DRAFT_STREAM, TOKEN_STREAM
from real.loop import Decoded, Settings, decode
from real.target import Target
from real.verify import sampling_processors
from specsim.controllers import Controller, Setting, build
from specsim.latency import LatencyModel
from specsim.online import OnlineController

EXACT = 1e-6  # how near a law computed in float32 comes to the true one
T = TypeVar("T")
Law = dict[tuple[int, ...], float]
Interval = tuple[float, float]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Models this small only lose by sharing work; for modules that import this."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Branching:
    """Draws that follow a script of choices and, beyond it, take the first possible one.

    Args:
        script: which of the possible choices to take, in the order in which they come up.

    Attributes:
        taken: (number of the choice, how many were possible), for each that came up.
        probability: of this course of events.
        intervals: where the uniform of each (stream, position) must lie for it.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        self._script = iter(script)
        self.taken: list[tuple[int, int]] = []
        self.probability = 1.0
        self.intervals: dict[tuple[int, int], Interval] = {}

    def leading(self, probabilities: torch.Tensor, pos: int) -> torch.Tensor:
        count = 0
        for place, chance in enumerate(probabilities.tolist()):
            if self._choose((ACCEPT_STREAM, pos + place), [0.0, min(chance, 1.0), 1.0]):
                break
            count += 1
        return torch.tensor(count)

    def token(self, weights: torch.Tensor, pos: int, ahead: torch.Tensor, width: int) -> torch.Tensor:
        assert 0 <= int(ahead) < width
        return self._pick(TOKEN_STREAM, weights, pos + int(ahead))

    def drafted(self, weights: torch.Tensor, pos: int) -> torch.Tensor:
        return torch.stack([self._pick(DRAFT_STREAM, row, pos + number) for number, row in enumerate(weights)])

    def _pick(self, stream: int, weights: torch.Tensor, pos: int) -> torch.Tensor:
        sums = np.concatenate([[0.0], np.cumsum(weights.double().numpy())])
        return torch.tensor(self._choose((stream, pos), (sums / sums[-1]).tolist()))

    def _choose(self, key: tuple[int, int], edges: list[float]) -> int:
        """Which of the intervals between `edges` the uniform of `key` lies in."""
        low, high = self.intervals.get(key, (0.0, 1.0))
        parts = [(max(low, a), min(high, b)) for a, b in itertools.pairwise(edges)]
        possible = [number for number, (a, b) in enumerate(parts) if b > a]
        at = next(self._script, 0)
        self.taken.append((at, len(possible)))
        chosen = possible[at]
        a, b = self.intervals[key] = parts[chosen]
        self.probability *= (b - a) / (high - low)
        return chosen


def branches(run: Callable[[Branching], T]) -> Iterator[tuple[Branching, T]]:
    """Every course of events of `run`, with the draws that made it; their probabilities sum to 1."""
    script: list[int] | None = []
    while script is not None:
        draws = Branching(script)
        yield draws, run(draws)
        script = None
        for place in range(len(draws.taken) - 1, -1, -1):
            at, possible = draws.taken[place]
            if at + 1 < possible:
                script = [*(number for number, _ in draws.taken[:place]), at + 1]
                break


class Scripted(torch.nn.Module):
    """A causal language model whose logits are a given function of the tokens before them.

    Its keys are the tokens themselves, so that what it sees is what cache and mask show it.

    Args:
        vocabulary: number of tokens.
        logits: of what follows a context.
        window: longest text.
    """

    def __init__(
        self, vocabulary: int, logits: Callable[[tuple[int, ...]], Sequence[float]], window: int | None = None
    ) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=vocabulary, max_position_embeddings=window)
        self.embedding = torch.nn.Embedding(vocabulary, 1)  # says how many tokens there are, and dtype and device
        self._logits, self._known = logits, {}

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.embedding

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        use_cache: bool = True,
        logits_to_keep: int = 0,
        cache: Any = None,
    ) -> SimpleNamespace:
        tokens, new = input_ids[0], input_ids.shape[1]
        if cache is None:
            contexts = [tuple(tokens[: i + 1].tolist()) for i in range(new)]
        else:
            assert attention_mask is not None
            states = tokens.float()[None, None, :, None]
            held = cache.update(states, states, 0)[0][0, 0, :, 0].long()
            contexts = [tuple(held[row == 0].tolist()) for row in attention_mask[0, 0]]
        rows = torch.tensor([self._row(context) for context in contexts[-logits_to_keep:]])
        return SimpleNamespace(logits=rows[None])

    def _row(self, context: tuple[int, ...]) -> list[float]:
        if context not in self._known:
            self._known[context] = [float(x) for x in self._logits(context)]
        return self._known[context]


def random_model(vocabulary: int, seed: int, *, spread: float = 1.5, like: Scripted | None = None) -> Scripted:
    """Logits are normal numbers of their own for every context, plus those of another model."""

    def logits(context: tuple[int, ...]) -> Any:
        own = np.random.default_rng([seed, *context]).normal(size=vocabulary) * spread
        return own if like is None else own + np.array(like._row(context))

    return Scripted(vocabulary, logits)


def fixed_model(law: Sequence[float]) -> Scripted:
    """The same distribution after every context."""
    with np.errstate(divide="ignore"):
        logs = np.log(np.array(law, np.float64))
    return Scripted(len(law), lambda context: logs)


class InBlocks(ModelDrafter):
    """Drafts two tokens a pass, so that what is drafted and what is submitted differ for every controller."""

    block_len = 2


class Sampling(NamedTuple):
    """Settings of a sampling decode, and what they do to logits, written down a second time."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def settings(self, tokens: int, stop_ids: tuple[int, ...] = ()) -> Settings:
        return Settings(
            max_new_tokens=tokens, stop_ids=stop_ids, sample=True, processors=sampling_processors(**self._asdict())
        )

    def law(self, logits: np.ndarray) -> np.ndarray:
        """Probabilities: temperature, then the k most likely, then the smallest set of at least mass top_p."""
        p = np.exp((logits - logits.max()) / self.temperature)
        order = np.argsort(-p, kind="stable")
        if self.top_k:
            p[order[self.top_k :]] = 0.0
        p /= p.sum()
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= self.top_p]] = 0.0
        return p / p.sum()


@torch.inference_mode()
def plain_law(
    model: torch.nn.Module, prompt: Sequence[int], tokens: int, sampling: Sampling, stop_ids: tuple[int, ...] = ()
) -> Law:
    """The law of plain sampling: products of the model's own probabilities, one full pass per text."""
    found: Law = {}
    open_: Law = {(): 1.0}
    while open_:
        output, chance = open_.popitem()
        logits = model(input_ids=torch.tensor([[*prompt, *output]]), use_cache=False).logits[0, -1]
        for token, p in enumerate(sampling.law(logits.double().numpy())):
            if p > 0:
                longer = (*output, token)
                done = len(longer) == tokens or token in stop_ids
                (found if done else open_)[longer] = chance * p
    return found


class FixedClock:
    """A clock that shows the same times for every round, so that rules that learn from time are repeatable."""

    def start(self) -> None:
        pass

    def enter(self) -> None:
        pass

    def leave(self, stage: str) -> None:
        pass

    def read(self) -> tuple[float, float, float]:
        return 0.001, 0.002, 0.004


def controller_of(spelling: str, drafter: Any, *, c_s: float = 0.05, pass_s: float = 0.02) -> Controller:
    """A controller for a drafter; drafting is cheap, so that rules that weigh costs do draft."""
    latency = LatencyModel.affine(c_s=c_s, b_s=1.0, draft_pass_s=pass_s)
    return build(
        spelling,
        Setting(block_len=drafter.block_len, max_draft_len=max(1, drafter.max_draft_len), latency=latency),
    )


def decode_branches(
    target: Target, drafter: Any, controller: Controller, prompt: Sequence[int], settings: Settings
) -> Iterator[tuple[Branching, Decoded]]:
    """Every decode that can happen, each with a fresh controller."""
    text = torch.tensor(prompt)

    def run(draws: Branching) -> Decoded:
        online = OnlineController(controller, compiled=not controller.compiled)  # plain Python in either case
        return decode(target, drafter, online, text, settings, draws=draws, clock=FixedClock())

    yield from branches(run)


def law_of(pairs: Iterator[tuple[Branching, Decoded]]) -> Law:
    """The law of the output."""
    law: Law = {}
    for draws, decoded in pairs:
        output = tuple(decoded.output)
        law[output] = law.get(output, 0.0) + draws.probability
    return law


def gap(one: Law, other: Law) -> float:
    """Largest difference of a probability."""
    return max(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in {*one, *other})


def distance(one: Law, other: Law) -> float:
    """Total variation distance."""
    return sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in {*one, *other}) / 2
