"""Training a small vision-language model: what a step sees and measures, whole runs, and what comes out of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")
if importlib.util.find_spec("sklearn") is None:
    pytest.skip("the digits need the extra 'vision'", allow_module_level=True)

from real.builders.arm import Arm  # noqa: E402
from real.data import load_prompts  # noqa: E402
from real.drafters.base import NoDrafter  # noqa: E402
from real.drafters.family import FixedArms  # noqa: E402
from real.drafters.prompt_lookup import PromptLookupDrafter  # noqa: E402
from real.drafters.selfspec import SelfDrafter  # noqa: E402
from real.drafters.subblocks import SubBlocks  # noqa: E402
from real.loop import Settings, decode  # noqa: E402
from real.target import Target, hidden_states  # noqa: E402
from real.training.digits_data import DigitTables  # noqa: E402
from real.training.skip_arms import ArmOptions, first_out  # noqa: E402
from real.training.vision_module import NO_LABEL, VisionLanguageModel  # noqa: E402
from real.training.vision_net import MERGE, PATCH  # noqa: E402
from real.vision.digits import CELL, write_questions  # noqa: E402
from real.vision.load import load_vision  # noqa: E402
from real.vision.pruning import PrunedFamily  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.real_lossless import random_lengths  # noqa: E402
from tests.real_selfspec import controller_for  # noqa: E402
from tests.real_training import THIRD_PARTY_WARNINGS, curves, interrupted_at, train  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY_WARNINGS]
CONFIG = ROOT / "real" / "configs" / "train" / "digits_vlm.yaml"
SIZES = {"layers": 5, "hidden": 32, "heads": 2, "kv_heads": 1, "feed_forward": 48, "tower_hidden": 16, "tower_heads": 2}


@pytest.fixture(autouse=True)
def untracked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")


def fit(out: Path, *more: str) -> int:
    """A few steps of the shipped configuration on a tiny model; the arms begin with the third."""
    return train(
        *("--config", str(CONFIG), *(f"--model.{name}={value}" for name, value in SIZES.items())),
        *("--model.arms.exits=[2,3]", "--model.arms.first_step=2", "--model.check_arms=['3-4']"),
        *("--model.warmup_steps=1", "--data.batch=2", "--data.checks=3"),
        *(f"--keep.out={out}", "--keep.every=2", "--keep.log_every=1"),
        *("--trainer.max_steps=6", "--trainer.val_check_interval=3", *more),
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted."""
    out = tmp_path_factory.mktemp("vision") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "disabled")
        assert fit(out) == 0
    return out


@pytest.fixture(scope="module")
def module() -> VisionLanguageModel:
    return VisionLanguageModel(**SIZES, arms=ArmOptions(exits=[2, 3]), check_arms=["3-4", "1"])


@pytest.fixture(scope="module")
def data() -> DigitTables:
    found = DigitTables(batch=3, checks=3)
    found.setup("fit")
    return found


# --- a step --------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def test_rows_of_a_batch_do_not_see_each_other(module: VisionLanguageModel, data: DigitTables) -> None:
    batch = data.batch_of(0)
    together = module.rows(batch)
    logits = module._logits(together)
    for number, asked in enumerate(batch):
        alone = module.rows([asked])
        length = alone.ids.shape[1]
        assert torch.equal(together.ids[number, :length], alone.ids[0])
        assert torch.equal(together.labels[number, :length], alone.labels[0])
        assert (together.labels[number, length:] == NO_LABEL).all()
        torch.testing.assert_close(logits[number, :length], module._logits(alone)[0], atol=1e-4, rtol=1e-4)
        answer = alone.labels[0][alone.labels[0] != NO_LABEL].tolist()
        assert module._tokenizer.decode(answer[:-1]) == asked.answer
        assert answer[-1] == module._tokenizer.eos_token_id


def test_visual_tokens_are_told_their_cells(module: VisionLanguageModel, data: DigitTables) -> None:
    """Against the picture: tokens that are told the same name are those with the same background."""
    batch = data.batch_of(3)
    rows, side = module.rows(batch), MERGE * PATCH
    for number, asked in enumerate(batch):
        visual = rows.ids[number] == module.net.config.image_token_id
        told = module._tokenizer.convert_ids_to_tokens(rows.shown[number][visual].flatten().tolist())
        width, height = asked.table.picture.size
        words = np.array(told).reshape(height // side, width // side, 2)
        parts = np.asarray(asked.table.picture).reshape(height // side, side, width // side, side, 3)
        red, _, blue = np.moveaxis(parts.mean(axis=(1, 3)), -1, 0)
        for down, across in np.ndindex(words.shape[:2]):
            cell = (down * side // CELL, across * side // CELL)
            digit = asked.table.grid[cell[0]][cell[1]]
            name = f"{'abcde'[cell[0]]}{cell[1] + 1}"
            assert words[down, across].tolist() == ["-" if digit is None else str(digit), name]
            alike = (abs(red - red[down, across]) < 20) & (abs(blue - blue[down, across]) < 20)
            assert ((words[..., 1] == name) == alike).all()
        assert (rows.shown[number][~visual] == NO_LABEL).all()


@torch.inference_mode()
def test_arms_go_on_from_the_whole_models_pass(module: VisionLanguageModel, data: DigitTables) -> None:
    rows, text = module.rows(data.batch_of(1)), module._text[0]
    with hidden_states(text, range(5)) as states:
        whole = module._logits(rows)
    left = module.arms.logits(Arm.parse("3-4"), states[2], position_ids=rows.positions)
    torch.testing.assert_close(left, text.lm_head(text.model.norm(states[2])))
    # An arm without its only layer, by hand: layers 2 to 4 over what entered layer 1.
    arm = Arm.parse("1")
    assert first_out(arm) == 1
    found = module.arms.logits(arm, states[0], position_ids=rows.positions)
    layers, kept = text.model.layers, torch.nn.ModuleList([text.model.layers[number] for number in (2, 3, 4)])
    try:
        text.model.layers = kept
        want = text(inputs_embeds=states[0], position_ids=rows.positions).logits
    finally:
        text.model.layers = layers
    torch.testing.assert_close(found, want)
    assert not torch.allclose(found, whole, atol=1e-3)


@pytest.mark.parametrize("wrong", [0, 1, 3])
def test_checks_count_answers_and_agreement(
    module: VisionLanguageModel, data: DigitTables, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    batch, seen = data.batch_of(2), {}
    rows = module.rows(batch)
    told = rows.labels.clamp_min(0)
    for row in range(wrong):  # one wrong token spoils an answer; what is not asked does not count
        told[row, torch.nonzero(rows.labels[row] != NO_LABEL)[row]] += 1
    told[rows.labels == NO_LABEL] = 5
    pretended = torch.nn.functional.one_hot(told, len(module._tokenizer)).float()
    monkeypatch.setattr(module, "_logits", lambda given: pretended)
    monkeypatch.setattr(module, "log_dict", lambda metrics, **rest: seen.update(metrics))
    monkeypatch.setattr(module.arms, "logits", lambda arm, state, **how: pretended.roll(int(arm == Arm.parse("1")), -1))
    monkeypatch.setattr("real.training.vision_module.hidden_states", _nothing)
    module.validation_step(batch, 0)
    assert seen["val/exact"] == pytest.approx(1 - wrong / 3)
    assert seen["val/agree_3-4"] == 1
    assert seen["val/agree_1"] == 0


class _nothing:
    """Stands for `hidden_states` where no pass runs."""

    def __init__(self, *args: object) -> None:
        pass

    def __enter__(self) -> dict[int, None]:
        return dict.fromkeys(range(5))

    def __exit__(self, *args: object) -> None:
        pass


# --- runs ----------------------------------------------------------------------------------------------------------


def test_a_result_decodes_losslessly(finished: Path, tmp_path: Path) -> None:
    write_questions(tmp_path / "digits", 1, seed=3)
    loaded = load_vision(str(finished / "result"), device="cpu")
    assert loaded.stop_ids == (loaded.tokenizer.eos_token_id,)
    blocks = SubBlocks(loaded.model)
    drafters = [
        (PromptLookupDrafter(max_draft_len=5), None),
        (SelfDrafter(blocks, FixedArms((Arm(), Arm.parse("3-4"))), name="self", max_draft_len=5), "exp3spec"),
        (SelfDrafter(blocks, PrunedFamily(loaded.vision, (0.0, 0.5, 1.0)), name="pruned", max_draft_len=5), "exp3spec"),
    ]
    for question in load_prompts(str(tmp_path / "digits")):
        prompt, outputs = loaded.encode(question), []
        assert 64 <= int(prompt.visual.sum()) <= 100
        for drafter, spelling in ((NoDrafter(), None), *drafters):
            controller = random_lengths() if spelling is None else controller_for(spelling, drafter)
            online = OnlineController(controller, seed=5, compiled=not controller.compiled)
            found = decode(Target(loaded.model), drafter, online, prompt, Settings(max_new_tokens=12))
            outputs.append(found.output)
        assert outputs == [outputs[0]] * 4
    card = (finished / "result" / "README.md").read_text()
    assert "Qwen2.5-VL class, 5 layers x 32" in card
    assert "val/exact" in card


@pytest.mark.parametrize("stop", [1, 5])
def test_an_interrupted_run_goes_on_bit_for_bit(finished: Path, tmp_path: Path, stop: int) -> None:
    out = tmp_path / "out"
    with interrupted_at(stop):
        assert fit(out) == 130
    assert not (out / "result").exists()
    assert fit(out) == 0
    assert curves(out) == curves(finished)
    steps = {row["step"]: row for row in curves(finished) if "train/loss" in row}
    assert [step for step, row in steps.items() if "train/exit" in row] == [3, 4, 5, 6]
    name = "model.safetensors"
    assert (out / "result" / name).read_bytes() == (finished / "result" / name).read_bytes()


def test_a_finished_run_writes_its_result_again(finished: Path) -> None:
    assert fit(finished) == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--model.heads=3", "model.heads=3: allowed is a divisor of 16"),
        ("--model.tower_heads=3", "model.tower_heads=3: allowed is a divisor of a quarter"),
        ("--model.kv_heads=3", "model.kv_heads=3"),
        ("--model.layers=4", "model.ends=2: allowed is less than half"),
        ("--model.arms.exits=[5]", "model.exits=[5]: allowed are numbers of layers, 1..4"),
        ("--model.arms.tail=2", "model.tail"),
        ("--model.check_arms=['9']", "model.check_arms"),
        ("--model.window=50", "model.window: a table and its answer take"),
        ("--data.batch=0", "data.batch"),
        (
            "--data=real.training.text_data.StdlibText --data.files=2 --data.vocabulary=300",
            "trained on real.training.digits_data.DigitTables",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    given: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fit(tmp_path / "out", *given.split()) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "result").exists()
