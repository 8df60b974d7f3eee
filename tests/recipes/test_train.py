"""The recipe from manifest to model, and that a run can be stopped and resumed at any step."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import nemostream
from nemostream.audio import load_audio
from nemostream.checkpoints import load_checkpoint
from nemostream.features import IncrementalLogMel
from nemostream.loading import embedded_bundle
from nemostream.model.network import Network
from tests.conftest import REPOSITORY

RECIPE = REPOSITORY / "recipes" / "tiny"
EXAMPLES = REPOSITORY / "examples"
SMALL = ["--batch-seconds", "8", "--aligned-hours", "0", "--phone-only-hours", "0", "--easy-hours", "0"]

Recipe = Callable[[str], ModuleType]


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recipe]:
    """Imports a script of the recipe."""
    pytest.importorskip("sentencepiece", reason="the extra `train` is not installed")
    monkeypatch.syspath_prepend(str(RECIPE))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield importlib.import_module
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def cache(recipe: Recipe, tmp_path: Path) -> Path:
    """Prepared recordings, with made-up phones."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    with (corpus / "manifest.jsonl").open("w", encoding="utf-8") as manifest:
        for clip in sorted(EXAMPLES.glob("*.flac")):
            text = clip.with_suffix(".txt").read_text(encoding="utf-8")
            manifest.write(json.dumps({"audio_filepath": str(clip), "text": text}) + "\n")
    out = tmp_path / "cache"
    recipe("prepare").main([str(corpus), "--out", str(out)])
    rows = [json.loads(line) for line in (out / "corpus.jsonl").open(encoding="utf-8")]
    with (out / "corpus.jsonl").open("w", encoding="utf-8") as index:
        index.writelines(json.dumps(row | {"phones": "hh ax l ow"}) + "\n" for row in rows)
    return out


def fine_tune(recipe: Recipe, cache: Path, out: Path, steps: int, *options: str) -> None:
    """Train the embedded model until ``steps`` updates are done."""
    words = ["--cache", str(cache), "--out", str(out), "--max-steps", str(steps), "--audio-hours", "1"]
    words += ["--start-from", str(embedded_bundle() / "checkpoint"), *SMALL, *options]
    recipe("train").main(words)


def arrays(checkpoint: Path) -> dict[str, np.ndarray]:
    return {name: np.asarray(value) for name, value in load_checkpoint(checkpoint).tensors.items()}


def test_prepare_keeps_every_clip(cache: Path) -> None:
    rows = [json.loads(line) for line in (cache / "corpus.jsonl").open(encoding="utf-8")]
    mel = np.load(cache / "corpus.mel.npy")
    assert len(rows) == len(list(EXAMPLES.glob("*.flac")))
    assert sum(row["frames"] for row in rows) == len(mel)
    assert mel.shape[1] == 128
    assert np.isfinite(mel).all()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It\u2019s \u201cso\u201d;  yes: no", 'It\'s "so", yes, no'),
        ("Room 12", None),
        ("  ", None),
        ("Déjà vu!", "Déjà vu!"),
    ],
)
def test_texts_that_cannot_be_spoken_in_one_way_are_dropped(
    recipe: Recipe, text: str, expected: str | None
) -> None:
    assert recipe("prepare").clean_text(text) == expected


def test_a_resumed_run_equals_an_uninterrupted_one(recipe: Recipe, cache: Path, tmp_path: Path) -> None:
    for out, stops in (("whole", (4,)), ("parts", (2, 4))):
        for steps in stops:
            fine_tune(recipe, cache, tmp_path / out, steps, "--dropout", "0.1")
    whole, parts = (torch.load(tmp_path / out / "state.pt", weights_only=True) for out in ("whole", "parts"))
    assert whole["steps"] == parts["steps"] == 4
    assert whole["hours"] == parts["hours"]
    for kind in ("network", "average", "ctc_head"):
        for name, value in whole[kind].items():
            assert torch.equal(value, parts[kind][name]), name


def test_fine_tuning_gives_a_model_that_transcribes(recipe: Recipe, cache: Path, tmp_path: Path) -> None:
    start, out = embedded_bundle() / "checkpoint", tmp_path / "run"
    fine_tune(recipe, cache, out, 3, "--freeze", "encoder", "--peak-rate", "0.01")
    recipe("export").main(
        ["--run", str(out), "--checkpoint", str(tmp_path / "hf"), "--bundle", str(tmp_path / "bundle")]
    )
    before, after = arrays(start), arrays(tmp_path / "hf")
    assert before.keys() == after.keys()
    frozen = [name for name in before if name.startswith("encoder.") and "conv_in" not in name]
    assert frozen
    for name in frozen:  # conv_in's bias was rounded once: the recipe trains it in other coordinates
        assert np.array_equal(before[name], after[name]), name
    assert not np.array_equal(before["joint.head.weight"], after["joint.head.weight"])
    clip = EXAMPLES / "order-latte.flac"
    texts = {nemostream.load(str(tmp_path / kind)).transcribe(clip).text for kind in ("hf", "bundle")}
    assert len(texts) == 1
    assert texts != {""}


def test_a_frozen_stem_stays_as_it_is_while_the_layers_learn(
    recipe: Recipe, cache: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    fine_tune(recipe, cache, out, 2, "--freeze", "stem", "--peak-rate", "0.01")
    before = arrays(embedded_bundle() / "checkpoint")
    after = torch.load(out / "average.pt", weights_only=True)["weights"]
    for name, value in before.items():
        # conv_in is kept in other coordinates, so it is the same up to rounding
        kept = np.allclose(value, after[name].numpy(), rtol=1e-5, atol=1e-5)
        if name.startswith("encoder.subsampling."):
            assert kept, name
        elif name.startswith("encoder.layers.") and value.ndim == 2:
            assert not kept, name


def test_a_run_can_start_from_an_earlier_one_and_its_phone_head(
    recipe: Recipe, cache: Path, tmp_path: Path
) -> None:
    fine_tune(recipe, cache, tmp_path / "first", 2)
    train = recipe("train")
    words = ["--cache", str(cache), "--out", str(tmp_path / "second"), "--audio-hours", "1"]
    arguments = train.parse_arguments([*words, "--start-from", str(tmp_path / "first")])
    trainer = train.begin(arguments, 256)
    first = torch.load(tmp_path / "first" / "state.pt", weights_only=True)
    assert trainer.steps == 0
    assert torch.equal(trainer.ctc_head.weight, first["ctc_head"]["weight"])
    for name, value in first["average"].items():  # the stem's coordinates change twice: rounding
        assert torch.allclose(trainer.network.state_dict()[name], value, rtol=1e-5, atol=1e-5), name


def test_training_lowers_the_loss(recipe: Recipe, cache: Path) -> None:
    train = recipe("train")
    checkpoint = load_checkpoint(embedded_bundle() / "checkpoint")
    schedule = train.Schedule(
        1.0, warmup_hours=0.02, aligned_hours=0, phone_only_hours=0, batch_seconds=8, augmented=0
    )
    trainer = train.Trainer(checkpoint.config, schedule, 0)
    trainer.start_from(checkpoint.tensors)
    corpora = train.Corpora(cache, lambda text: [1 + len(text) % 7] * 5, {}, frozenset({"en"}))
    losses = [trainer.step(corpora)["rnnt"] for _ in range(12)]
    assert all(math.isfinite(loss) for loss in losses)
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])


def test_two_processes_average_their_gradients(recipe: Recipe, cache: Path, tmp_path: Path) -> None:
    """Two updates of two processes equal two updates with the mean of both processes' gradients."""
    import sentencepiece

    out = tmp_path / "run"
    words = ["--cache", str(cache), "--out", str(out), "--max-steps", "2", "--audio-hours", "1", *SMALL]
    words += ["--start-from", str(embedded_bundle() / "checkpoint")]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*launch, str(RECIPE / "train.py"), *words], check=True, timeout=300)
    together = torch.load(out / "state.pt", weights_only=True)

    train = recipe("train")
    arguments = train.parse_arguments(words)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(out / "tokenizer.model"))
    arguments.out = tmp_path / "alone"
    trainer = train.begin(arguments, pieces.get_piece_size())
    tag = pieces.piece_to_id("<en-US>")
    corpora = train.Corpora(cache, lambda text: [*pieces.encode(text), tag], {}, frozenset({"en"}))
    trainer.processes = Alternately(trainer, corpora)
    for _ in range(2):
        trainer.step(corpora)
    assert trainer.hours == pytest.approx(together["hours"], rel=1e-6)
    alone = trainer.network.state_dict()
    for name, value in together["network"].items():
        assert torch.allclose(value, alone[name], atol=2e-5), name


class Alternately:
    """Stands in for two processes: computes the other one's gradients as well."""

    size = 2

    def __init__(self, trainer: Any, corpora: Any) -> None:
        self.rank, self._trainer, self._corpora = 0, trainer, corpora

    def share(self, gradients: list[torch.Tensor], counts: list[float]) -> list[float]:
        mine = [gradient.clone() for gradient in gradients]
        trainer = self._trainer
        for gradient in gradients:
            gradient.zero_()
        trainer.random = random.Random(f"{trainer.seed} 1 {trainer.steps}")
        torch.manual_seed(trainer.random.getrandbits(48))
        rnnt, phone, hours = trainer.losses(self._corpora)
        (rnnt + trainer.schedule.phone_weight * phone).backward()
        for gradient, own in zip(gradients, mine, strict=True):
            gradient.add_(own).div_(2)
        return [counts[0] + hours, counts[1]]


@pytest.mark.parametrize("layers", [10, 13, 18])
def test_added_layers_change_nothing_at_first(recipe: Recipe, layers: int) -> None:
    checkpoint = load_checkpoint(embedded_bundle() / "checkpoint")
    deeper = recipe("deepen").deepen(checkpoint.tensors, layers)
    mel = IncrementalLogMel().feed(np.asarray(load_audio(EXAMPLES / "order-latte.flac")))
    encoded = []
    for tensors in (checkpoint.tensors, deeper):
        count = sum(name.endswith("norm_out.weight") for name in tensors)
        network = Network(replace(checkpoint.config, num_layers=count)).eval()
        network.load_state_dict({name: torch.from_numpy(np.float32(v)) for name, v in tensors.items()})
        with torch.no_grad():
            encoded.append(
                network.encoder.encode_utterance(
                    torch.from_numpy(mel)[None], torch.tensor([len(mel)]), (56, 3)
                )[0]
            )
    # LayerNorm adds 1e-5 to the variance, which a second one sees as a part of 1e-5 less than 1
    assert torch.allclose(encoded[0], encoded[1], atol=1e-3)
    assert count == layers


def test_layers_cannot_be_taken_away(recipe: Recipe) -> None:
    tensors = load_checkpoint(embedded_bundle() / "checkpoint").tensors
    for layers in (8, 9, 19):
        with pytest.raises(ValueError, match="9 layers can become 10 to 18"):
            recipe("deepen").deepen(tensors, layers)


def test_wrong_weights_are_refused_in_a_sentence(recipe: Recipe, cache: Path) -> None:
    train = recipe("train")
    assert train.corpus_weights(["corpus=0.5"], cache) == {"corpus": 0.5}
    for item, complaint in (("corpse=1", "no corpus 'corpse'"), ("corpus", "expected CORPUS=NUMBER")):
        with pytest.raises(SystemExit, match=complaint):
            train.corpus_weights([item], cache)


def test_an_empty_cache_is_refused_in_a_sentence(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no English clips"):
        fine_tune(recipe, tmp_path, tmp_path / "run", 1)


def test_random_weights_without_times_of_phones_are_refused(
    recipe: Recipe, cache: Path, tmp_path: Path
) -> None:
    words = ["--cache", str(cache), "--out", str(tmp_path / "run"), "--audio-hours", "1"]
    with pytest.raises(SystemExit, match=r"phones\.py speak"):
        recipe("train").main([*words, "--vocab-size", "40"])


def test_the_rate_warms_up_and_ends_near_zero(recipe: Recipe) -> None:
    schedule = recipe("schedule").Schedule(100.0)
    rates = [schedule.rate(hours) for hours in np.linspace(0, 100, 201)]
    assert rates[0] < 0.05 * schedule.peak_rate
    assert max(rates) <= schedule.peak_rate
    assert rates[-1] == pytest.approx(0.02 * schedule.peak_rate)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_the_log_can_be_drawn(recipe: Recipe, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    row = {"hours": 1.0, "speed": 9.0, "phone": 1.0, "rnnt": 2.0, "norm": 1.0, "rate": 1e-3}
    entries = [{"schedule": {}}, *({"step": step} | row for step in (100, 200, 300))]
    entries += [{"schedule": {}}, {"step": 200} | row | {"rnnt": 1.0}]  # was killed, and resumed from 100
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    plot = recipe("plot")
    heads, rows = plot.read_log(tmp_path / "log.jsonl")
    assert (len(heads), [row["step"] for row in rows], rows[-1]["rnnt"]) == (2, [100, 200], 1.0)
    plot.main([str(tmp_path), "--out", str(tmp_path / "curve.png")])
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_corpus_without_a_known_licence_stops_the_card(recipe: Recipe) -> None:
    card = recipe("card")
    assert "CC0-1.0" in card.data_table({"kathleen": 1.3})
    with pytest.raises(SystemExit, match="mystery"):
        card.data_table({"kathleen": 1.3, "mystery": 1.0})


def test_the_shipped_card_has_the_hash_of_the_shipped_file() -> None:
    folder = embedded_bundle()
    digest = hashlib.sha256((folder / "checkpoint" / "model.safetensors").read_bytes()).hexdigest()
    assert digest in (folder / "MODEL_CARD.md").read_text(encoding="utf-8")


def test_clips_in_a_row_keep_what_is_said_and_when(recipe: Recipe, cache: Path) -> None:
    data = recipe("data")
    corpora = data.Corpora(
        cache, lambda text: [1 + len(word) for word in text.split()], {}, frozenset({"en"})
    )
    clips = [replace(clip, frames=200) for clip in corpora.clips["corpus"]]
    generator = random.Random(3)
    rows = data.in_a_row(clips, generator)
    assert max(map(len, rows)) > 1
    batch = data.collate(corpora, rows, 0.0, generator)
    for number, row in enumerate(rows):
        said = [token for clip in row for token in clip.tokens]
        assert batch.tokens[number, : batch.token_lengths[number]].tolist() == said
        assert batch.phone_lengths[number] == 4 * len(row)
        pauses = int(batch.mel_lengths[number]) - sum(clip.frames for clip in row)
        assert 0 <= pauses <= 24 + data.LONGEST_PAUSE * (len(row) - 1)
        last = corpora.mel(row[-1])
        end = int(batch.mel_lengths[number])
        assert torch.equal(batch.mel[number, end - len(last) : end], last)


def test_rows_train_and_resume_exactly(recipe: Recipe, cache: Path, tmp_path: Path) -> None:
    fine_tune(recipe, cache, tmp_path / "one", 4, "--in-a-row", "1")
    for steps in (2, 4):
        fine_tune(recipe, cache, tmp_path / "two", steps, "--in-a-row", "1")
    states = [torch.load(tmp_path / name / "average.pt", weights_only=True) for name in ("one", "two")]
    for name, value in states[0]["weights"].items():
        assert torch.equal(value, states[1]["weights"][name]), name
