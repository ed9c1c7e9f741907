"""Shadow replay: the log of a real decode, fed back through the simulator's loop, gives the same decisions."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.drafters.layer_skip import skip_layers  # noqa: E402
from real.drafters.model import ModelDrafter  # noqa: E402
from real.drafters.prompt_lookup import PromptLookupDrafter  # noqa: E402
from real.folder import Request, Run  # noqa: E402
from real.loop import Settings, decode  # noqa: E402
from real.shadow import COLUMNS, shadow, shadow_run  # noqa: E402
from real.target import Target  # noqa: E402
from specsim.controllers import REGISTRY, Controller, NoParams, Setting, build  # noqa: E402
from specsim.latency import LatencyModel  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.real_tiny import STOP, prompt_ids, tiny_llama  # noqa: E402
from tests.worlds import ALL, SPELLINGS  # noqa: E402

MAX_DRAFT, SEED = 6, 4
LATENCY = LatencyModel.affine(c_s=0.002, b_s=0.05, draft_pass_s=0.01, overhead_s=0.001)


def made(spelling: str, block_len: int = 1):
    return build(spelling, Setting(block_len=block_len, max_draft_len=MAX_DRAFT, latency=LATENCY))


LIVE = [name for name in ALL if (c := made(name)).privilege == "none" and c.plan is None]


class Fits:
    """A target and three drafters for it, loaded once."""

    def __init__(self) -> None:
        model = tiny_llama(seed=3, spread=0.08)
        self.target = Target(model)
        shallow = skip_layers(model, (1,))
        self.drafters = {
            "model": ModelDrafter(shallow, name="model", max_draft_len=MAX_DRAFT),
            "lookup": PromptLookupDrafter(max_draft_len=MAX_DRAFT, stop_ids=(STOP,)),
            # Leaves its window in the middle of the output: drafts come out shorter than asked for, then empty.
            "short-sighted": ModelDrafter(
                skip_layers(tiny_llama(seed=3, spread=0.08, window=30), (1,)),
                name="short-sighted",
                max_draft_len=MAX_DRAFT,
            ),
        }


@pytest.fixture(scope="module")
def fits() -> Fits:
    return Fits()


def decoded(fits: Fits, spelling: str, drafter: str, *, tokens: int = 12, requests: int = 2):
    """(controller, log of several requests, what the controller has learned) of a real decode."""
    chosen = fits.drafters[drafter]
    controller = made(spelling, chosen.block_len)
    online = OnlineController(controller, seed=SEED)
    log = []
    for number in range(requests):
        prompt = torch.cat([prompt_ids(number), prompt_ids(number)])
        done = decode(fits.target, chosen, online, prompt, Settings(max_new_tokens=tokens, seed=SEED), request=number)
        log.append((number, done.rounds))
    return controller, log, pickle.loads(pickle.dumps(online))._state


def options(fits: Fits, drafter: str) -> dict[str, int]:
    return {"block_len": fits.drafters[drafter].block_len, "max_draft_len": MAX_DRAFT, "seed": SEED}


@pytest.mark.parametrize("spelling", LIVE)
@pytest.mark.parametrize("drafter", ["model", "lookup", "short-sighted"])
def test_decisions_are_those_of_the_log(fits, spelling, drafter):
    controller, log, learned = decoded(fits, spelling, drafter)
    if (drafter, spelling) == ("short-sighted", "static:length=40"):  # this case is about drafts cut by the window
        assert any(r.available_len < min(MAX_DRAFT, 11 - r.pos) for _, rounds in log for r in rounds)
    for compiled in (None, False):
        state = controller.fresh_state()
        found = shadow(controller, log, state=state, compiled=compiled, **options(fits, drafter))
        assert found is None, str(found)
        persistent = controller.initial.size
        np.testing.assert_array_equal(state[:, :persistent], learned[:, :persistent])


def test_every_controller_that_can_run_live_is_here():
    names = {spelling.partition(":")[0] for spelling in LIVE}
    assert {"plain", "static", "g4", "threshold", "failfast", "specdecpp", "libraspec", "goodput", "lambda"} <= names
    missing = {name for name in REGISTRY if "length" in REGISTRY[name].kinds} - names
    for name in missing:
        controller = made(SPELLINGS[name][0])
        assert controller.privilege != "none" or controller.plan is not None, name


@pytest.mark.parametrize("column", ["arm", "drafted_len", "submitted_len", "emitted_len", "draft_passes", "pos"])
def test_a_changed_log_is_found(fits, column):
    controller, log, _ = decoded(fits, "g4", "model")
    number, rounds = log[1]
    row = next(r for r in rounds if r.drafted_len > 0 and r.round > 0)
    setattr(row, column, getattr(row, column) + 1)
    if column == "drafted_len":  # one more token has to have been on offer
        row.q, row.available_len = np.append(row.q, np.float32(0.5)), row.available_len + 1
    found = shadow(controller, log, **options(fits, "model"))
    assert found is not None
    assert (found.request, found.round) in {(number, row.round), (number, row.round + 1)}
    assert found.logged != found.replayed
    assert f"request {number}, round {found.round}" in str(found)


def test_a_changed_acceptance_is_found(fits):
    controller, log, _ = decoded(fits, "static:length=3", "model", tokens=20)
    row = next(r for _, rounds in log for r in rounds[:-1] if r.accepted_len < r.submitted_len)
    row.accepted_len += 1
    assert shadow(controller, log, **options(fits, "model")).column == "emitted_len"
    row.emitted_len += 1
    assert shadow(controller, log, **options(fits, "model")).column == "pos"


def test_seconds_decide_where_a_rule_learns_from_them(fits):
    # The log's own seconds give the log's decisions; other seconds give others. So measured seconds do reach update.
    controller, log, learned = decoded(fits, "banditspec-ucb", "model", tokens=40)
    states = []
    for factor in (1.0, 3.0):
        changed = [
            (n, [replace(r, round_s=r.round_s * (factor if r.submitted_len > 2 else 1)) for r in rs]) for n, rs in log
        ]
        states.append(controller.fresh_state())
        shadow(controller, changed, state=states[-1], **options(fits, "model"))
    np.testing.assert_array_equal(states[0], learned)
    assert not np.array_equal(states[0], states[1])


def counting() -> Controller:
    """Drafts as many tokens as it has seen rounds, up to 4, and never forgets."""

    def begin(params, state, lane, pos, ctx_len, u, hint):
        return -1, int(min(state[lane, 0], 4))

    def revise(params, state, lane, q, drafted, more):
        return drafted, drafted

    def update(params, state, lane, arm, drafted, submitted, accepted, round_s):
        state[lane, 0] += 1

    return Controller(
        name="counting",
        config={},
        params=NoParams(),
        begin=begin,
        revise=revise,
        update=update,
        initial=np.zeros(1),
        per_request=False,
    )


def test_lanes_learn_apart_and_warm_up_does_not_count(fits):
    def request(number: int, online: OnlineController, lane: int, *, warmup: bool = False) -> Request:
        settings = Settings(max_new_tokens=8, seed=SEED)
        done = decode(fits.target, fits.drafters["model"], online, prompt_ids(number), settings, request=number)
        return Request(
            number=number, id=str(number), lane=lane, runs=(Run(controller="b", decoded=done, warmup=warmup),)
        )

    controller = counting()
    lanes = [OnlineController(controller, seed=SEED, compiled=False) for _ in range(3)]
    apart = [request(0, lanes[0], 0), request(0, lanes[1], 1), request(1, lanes[0], 0)]
    warm = [request(0, lanes[2], 0, warmup=True), *apart]
    for requests in (apart, warm):
        assert shadow_run(controller, "b", requests, **options(fits, "model")) is None
    together = [replace(one, lane=0) for one in apart]
    found = shadow_run(controller, "b", together, **options(fits, "model"))
    assert found is not None
    assert (found.request, found.round, found.column) == (0, 0, "drafted_len")


def test_nothing_decoded_is_no_difference(fits):
    assert shadow(made("g4"), [(0, [])], **options(fits, "model")) is None


def test_all_decisions_are_compared():
    assert set(COLUMNS) == {"arm", "drafted_len", "submitted_len", "accepted_len", "emitted_len", "draft_passes"}
