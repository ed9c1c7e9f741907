"""Training of drafters: every configuration runs, what is trained is what decodes, and the checks tell the truth."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="real/ needs the extra 'real'")

from real.drafters.choose import parse_drafter  # noqa: E402
from real.loop import Settings, decode  # noqa: E402
from real.models import load_target  # noqa: E402
from real.session import make_drafter  # noqa: E402
from real.target import Target  # noqa: E402
from real.training.block_diffusion import block_logits, draw_masks  # noqa: E402
from real.training.blocks import slots_at  # noqa: E402
from real.training.drafter_module import drafted_ids  # noqa: E402
from real.training.target_states import TargetStates  # noqa: E402
from real.training.texts import read_texts, write_shard  # noqa: E402
from specsim.online import OnlineController  # noqa: E402
from tests.conftest import ROOT  # noqa: E402
from tests.real_law import controller_of  # noqa: E402
from tests.real_tiny import tiny_llama  # noqa: E402
from tests.real_training import THIRD_PARTY_WARNINGS, curves, interrupted_at, make_texts, train  # noqa: E402

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY_WARNINGS]
CONFIGS = ROOT / "real" / "configs" / "train"
SMALL = {
    "dflash": ("--model.layers=[0,1,3]", "--model.block_size=5", "--model.anchors=6", "--model.feed_forward=48"),
    "eagle3": ("--model.layers=[0,1,3]", "--model.steps=4", "--model.feed_forward=48"),
    "fastdllm": ("--model.start_layers=[0,3]", "--model.block_size=8", "--model.copies=8"),
}
HEADS = ("--model.heads=4", "--model.kv_heads=2", "--model.vocabulary=40")
CONFIGURED = {
    path.stem: path.stem.partition("_")[2]
    for path in CONFIGS.glob("*.yaml")
    if path.stem not in ("lab_target", "lab_skip", "digits_vlm")
}


@pytest.fixture(autouse=True)
def untracked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny target and texts it wrote."""
    return make_texts(tmp_path_factory.mktemp("drafters"))


def fit(config: str, place: tuple[Path, Path], out: Path, *more: str) -> int:
    kind = CONFIGURED[config]
    return train(
        *("--config", str(CONFIGS / f"{config}.yaml"), "--model.target", str(place[0]), "--data.folder", str(place[1])),
        *(
            "--data.batch=4",
            "--data.shortest=2",
            f"--keep.out={out}",
            f"--keep.result={out / 'result'}",
            "--keep.log_every=1",
        ),
        *("--trainer.max_steps=6", "--trainer.val_check_interval=3", "--keep.every=2", "--trainer.precision=32-true"),
        *("--model.warmup_steps=1", *SMALL[kind], *(() if kind == "fastdllm" else HEADS), *more),
    )


def drafter_of(kind: str, folder: Path, loaded: Any, *more: str) -> Any:
    text = ",".join([f"{kind}:path={folder}", *more])
    spec = parse_drafter(text, target=loaded.name, n_layers=4)
    return make_drafter(spec, loaded, max_draft_len=8)


@pytest.fixture(scope="module")
def fitted(place: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run folders of one drafter of each kind, trained until some drafts are right."""
    root, found = tmp_path_factory.mktemp("fitted"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "disabled")
        for kind in SMALL:
            found[kind] = root / kind
            steps = ("--trainer.max_steps=60", "--trainer.val_check_interval=60", "--keep.every=60")
            assert fit(f"lab_{kind}", place, found[kind], *steps, "--model.adam_lr=0.01") == 0
    return found


def test_there_is_a_configuration_of_each_kind() -> None:
    assert set(CONFIGURED.values()) == set(SMALL)


@pytest.mark.parametrize("config", sorted(CONFIGURED))
def test_every_configuration_runs_and_its_drafter_loads(config: str, place: tuple[Path, Path], tmp_path: Path) -> None:
    out, kind = tmp_path / "out", CONFIGURED[config]
    assert fit(config, place, out) == 0
    rows = curves(out)
    assert sum("train/loss" in row for row in rows) == 6
    assert all(1.0 <= row["val/tau"] <= 9.0 for row in rows if "val/tau" in row)
    drafter_of(kind, out / "result", load_target(str(place[0]), device="cpu"))
    card = (out / "result" / "README.md").read_text()
    assert "12 texts" in card
    assert "real.train fit" in card


@pytest.mark.parametrize("kind", sorted(SMALL))
def test_training_pays(kind: str, fitted: dict[str, Path]) -> None:
    losses = [row["train/loss"] for row in curves(fitted[kind]) if "train/loss" in row]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])


@pytest.mark.parametrize("kind", ["dflash", "eagle3"])
def test_the_check_is_what_a_decode_does(kind: str, place: tuple[Path, Path], fitted: dict[str, Path]) -> None:
    """Tokens per round of `val/tau` are those of the decode loop on the same texts."""
    loaded = load_target(str(place[0]), device="cpu")
    block = 4
    drafter = drafter_of(kind, fitted[kind] / "result", loaded)
    emitted = rounds = 0
    for text in read_texts(place[1]):
        if text.held_out:
            prompt = torch.from_numpy(text.tokens[: text.prompt_len]).long()
            wanted = len(text.tokens) - text.prompt_len
            online = OnlineController(controller_of(f"static:length={block}", drafter), compiled=False)
            found = decode(Target(loaded.model), drafter, online, prompt, Settings(max_new_tokens=wanted))
            assert found.output == text.tokens[text.prompt_len :].tolist()
            emitted, rounds = emitted + wanted, rounds + len(found.rounds)
    tau = curves(fitted[kind])[-1]["val/tau"]
    assert tau == pytest.approx(emitted / rounds, rel=0.02)  # the checkpoint is in bfloat16
    assert tau > 1.05  # otherwise nothing was compared


def test_the_fastdllm_check_is_a_pass_of_its_drafter(place: tuple[Path, Path], fitted: dict[str, Path]) -> None:
    """One pass with threshold 0 fills a small block at once: as many right tokens as `val/slot_1` says."""
    loaded = load_target(str(place[0]), device="cpu")
    drafter = drafter_of("fastdllm", fitted["fastdllm"] / "result", loaded, "threshold=0", "small=8")
    right = total = 0
    for text in read_texts(place[1]):
        if text.held_out:
            for at in range(text.prompt_len - 1, len(text.tokens) - 1):
                drafter.start(torch.from_numpy(text.tokens[: at + 1]).long(), 64, None, ())
                right += int(drafter.propose(1, 0).tokens[0]) == int(text.tokens[at + 1])
                total += 1
    assert right / total == pytest.approx(curves(fitted["fastdllm"])[-1]["val/slot_1"], abs=0.02)


@pytest.mark.parametrize("kind", sorted(SMALL))
def test_an_interrupted_training_goes_on_bit_for_bit(kind: str, place: tuple[Path, Path], tmp_path: Path) -> None:
    """With the target's states remembered in one and computed again in the other."""
    config = f"lab_{kind}"
    assert fit(config, place, tmp_path / "whole") == 0
    with interrupted_at(5):
        assert fit(config, place, tmp_path / "parts") == 130
    assert fit(config, place, tmp_path / "parts") == 0
    assert curves(tmp_path / "parts") == curves(tmp_path / "whole")
    one, two = (tmp_path / name / "result" / "model.safetensors" for name in ("parts", "whole"))
    assert one.read_bytes() == two.read_bytes()


def test_settings_that_make_no_sense_are_refused(
    place: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more, advice in (
        ("--model.vocabulary=99", "1 to the target's 64"),
        ("--model.loss.weights=linear", "path or exp"),
        ("--data.batch=40", "make more texts"),
        ("--model.target=nowhere/at/all", "cannot be loaded"),
    ):
        assert fit("lab_dflash", place, tmp_path / "out", more) == 2
        assert advice in capsys.readouterr().err


def test_a_training_does_not_go_on_with_other_texts(
    place: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts"
    shutil.copytree(place[1], texts)
    assert fit("lab_fastdllm", (place[0], texts), tmp_path / "out", "--trainer.limit_val_batches=0") == 0
    write_shard(texts, 2, read_texts(texts)[:2])
    assert fit("lab_fastdllm", (place[0], texts), tmp_path / "out", "--trainer.limit_val_batches=0") == 2
    assert "other data (12 texts" in capsys.readouterr().err


def test_soft_labels_train_towards_the_targets_law(place: tuple[Path, Path], tmp_path: Path) -> None:
    assert fit("lab_dflash", place, tmp_path / "hard") == 0
    assert fit("lab_dflash", place, tmp_path / "soft", "--model.loss.soft=1") == 0
    hard, soft = (curves(tmp_path / name)[0]["train/loss"] for name in ("hard", "soft"))
    assert soft != hard
    # Cross-entropy under a law is never below that law's entropy, which the same weights see as a positive number.
    assert soft > 0


# --- pieces ------------------------------------------------------------------------------------------------------


def test_states_are_the_targets_own_and_the_same_from_memory(place: tuple[Path, Path]) -> None:
    model, texts = load_target(str(place[0]), device="cpu").model, read_texts(place[1])[:3]
    remembered, computed = TargetStates(model, [1, 3], 1.0), TargetStates(model, [1, 3], 0.0)
    first, again = remembered.of([0, 1, 2], texts), remembered.of([2, 0], [texts[2], texts[0]])
    for number, text in enumerate(texts):
        ids = torch.from_numpy(text.tokens).long()[None]
        out = model(input_ids=ids, output_hidden_states=True, use_cache=False)
        count = len(text.tokens)
        assert torch.equal(first.greedy[number, :count], out.logits[0].argmax(dim=-1))
        torch.testing.assert_close(first.features[number, :count, :32], out.hidden_states[2][0].bfloat16())
    anew = computed.of([2, 0], [texts[2], texts[0]])
    for name in ("ids", "greedy", "features", "last"):
        assert torch.equal(getattr(again, name), getattr(anew, name))
    agreed = first.agreed()[0, texts[0].prompt_len : len(texts[0].tokens)]
    assert texts[0].greedy
    assert agreed.all()
    slots = slots_at(first, torch.tensor([[texts[0].prompt_len]]).expand(3, -1), 4)
    assert slots.valid[0].all()


def test_drafted_ids_are_places_among_the_kept_ones() -> None:
    places, inside = drafted_ids(torch.tensor([3, 9, 4, 63]), torch.tensor([3, 4, 9]))
    assert inside.tolist() == [True, True, True, False]
    assert places[:3].tolist() == [0, 2, 1]


def test_noisy_blocks_see_themselves_and_the_clean_text_before() -> None:
    """Changing a token moves exactly the outputs that may see it."""
    model = tiny_llama(layers=1)
    ids = torch.randint(3, 60, (1, 12), generator=torch.Generator().manual_seed(0))
    blocks, noisy = torch.tensor([[1, 2, 1]]), ids.unfold(1, 4, 4)[:, [1, 2, 1]].clone()
    with torch.no_grad():
        before = block_logits(model, ids, blocks, noisy, 4)

        def moved(ids: Any, noisy: Any) -> list[Any]:
            after = block_logits(model, ids, blocks, noisy, 4)
            return [(one != two).any(dim=-1) for one, two in zip(before, after, strict=True)]

        other = ids.clone()
        other[0, 5] = 63  # in block 1
        clean, copies = moved(other, noisy)
        assert clean[0].tolist() == [False] * 4 + [True] * 8
        assert copies[0].any(dim=-1).tolist() == [False, True, False]
        noisy[0, 0, 3] = 63
        clean, copies = moved(ids, noisy)
        assert not clean.any()
        assert copies[0].all(dim=-1).tolist() == [True, False, False]


def test_masks_come_in_complementary_pairs_and_suffixes() -> None:
    masks = draw_masks(10, 8, np.random.default_rng(0))
    assert masks.shape == (10, 8)
    assert not masks[:, 0].any()
    assert (np.diff(masks[:6].astype(int), axis=1) >= 0).all()
    assert (masks[6:8, 1:] ^ masks[8:, 1:]).all()
