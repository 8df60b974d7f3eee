"""Train a small streaming model: phones first, then RNN-T. Resumable; one core, several, or a GPU.

    python recipes/tiny/train.py --cache work/cache --out work/run --audio-hours 300
    torchrun --nproc-per-node 2 recipes/tiny/train.py ...    # the same with two processes

Every batch draws its right context at random from the trained set, so one model serves every latency. The
learning rate follows the audio seen, not the clock. ``--out`` holds ``state.pt`` (to resume), ``log.jsonl``
and ``average.pt``: the averaged weights, of which ``export.py`` makes a Hugging Face folder and a bundle.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import signal
import sys
import time
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import sentencepiece
import torch
from average import read_average, write_average
from deepen import Weights, deepen
from schedule import Schedule
from tokenizer import LANGUAGE_TAG, make_tokenizer
from torch import Tensor
from trainer import Trainer, tiny_config

from data import Corpora, corpus_weights
from nemostream.checkpoints import load_checkpoint
from nemostream.config import ModelConfig
from processes import Processes


def save(trainer: Trainer, out: Path) -> None:
    """Write the resume state and the averaged weights, each in one move so that a kill can't tear them."""
    if trainer.processes.rank:
        return
    temporary = out / "state.tmp"
    torch.save(trainer.state_dict(), temporary)
    temporary.rename(out / "state.pt")
    write_average(out, trainer.config, trainer.averaged_weights(), trainer.ctc_head.state_dict())


def append(path: Path | None, row: dict[str, object]) -> None:
    """Add a row to the log, if this process writes it."""
    if path is not None:
        with path.open("a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True, help="folder that prepare.py wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--audio-hours", type=float, required=True, help="audio to see, in hours")
    parser.add_argument(
        "--start-from",
        type=Path,
        help="checkpoint folder to fine-tune, or run whose averaged weights to take",
    )
    parser.add_argument("--layers", type=int, help="of the encoder; a checkpoint gets what it lacks")
    parser.add_argument("--vocab-size", type=int, default=256)
    parser.add_argument("--aligned-hours", type=float, default=2.0)
    parser.add_argument("--phone-only-hours", type=float, default=8.0)
    parser.add_argument("--easy-hours", type=float, default=20.0)
    parser.add_argument("--batch-seconds", type=float, default=60.0)
    parser.add_argument("--peak-rate", type=float, default=1.2e-3)
    parser.add_argument("--augmented", type=float, default=0.9, help="share of clips to augment")
    parser.add_argument(
        "--in-a-row", type=float, default=0.0, help="share of batches whose clips are joined by pauses"
    )
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument(
        "--freeze", choices=["stem", "encoder"], help="keep this part; the stem alone is a fifth of an update"
    )
    parser.add_argument(
        "--weights", nargs="*", default=[], metavar="CORPUS=X", help="draw a corpus X times as often"
    )
    parser.add_argument("--save-minutes", type=float, default=5.0)
    parser.add_argument("--max-steps", type=int, help="save and end after this many updates in all")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def starting_point(folder: Path) -> tuple[ModelConfig, Weights, dict[str, Tensor] | None]:
    """Dimensions and weights of a checkpoint; of an earlier run also its head for phones.

    A head that begins at random disturbs a trained encoder for the first hours of audio.
    """
    if (folder / "average.pt").exists():
        return read_average(folder)
    checkpoint = load_checkpoint(folder)
    return checkpoint.config, dict(checkpoint.tensors), None


def begin(arguments: argparse.Namespace, vocab_size: int) -> Trainer:
    """A trainer that goes on where the run stopped, or starts from a checkpoint or from random weights."""
    schedule = Schedule(
        arguments.audio_hours,
        peak_rate=arguments.peak_rate,
        aligned_hours=arguments.aligned_hours,
        phone_only_hours=arguments.phone_only_hours,
        easy_hours=arguments.easy_hours,
        batch_seconds=arguments.batch_seconds,
        augmented=arguments.augmented,
        in_a_row=arguments.in_a_row,
    )
    config, weights, ctc_head = tiny_config(vocab_size), {}, None
    if arguments.start_from is not None:
        config, weights, ctc_head = starting_point(arguments.start_from)
    if arguments.layers is not None:
        if weights and arguments.layers != config.num_layers:
            try:
                weights = deepen(weights, arguments.layers)
            except ValueError as error:
                raise SystemExit(f"--layers {arguments.layers}: {error}") from None
        config = replace(config, num_layers=arguments.layers)
    trainer = Trainer(config, schedule, arguments.seed, arguments.dropout, arguments.freeze)
    if (arguments.out / "state.pt").exists():
        state = torch.load(arguments.out / "state.pt", map_location="cpu", weights_only=True)
        trainer.load_state_dict(state)
    elif weights:
        trainer.start_from(weights, ctc_head)
    return trainer


def main(argv: list[str] | None = None) -> None:
    """Train until the hours are seen, the steps done, or SIGINT or SIGTERM comes; then save."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = parse_arguments(argv)
    torch.set_num_threads(1)  # two threads on a busy machine fall to a fraction of one
    arguments.out.mkdir(parents=True, exist_ok=True)
    processes = Processes()
    pieces = arguments.out / "tokenizer.model"
    if processes.rank == 0 and arguments.start_from is not None:
        shutil.copy(arguments.start_from / pieces.name, pieces)
    elif processes.rank == 0 and not pieces.exists():
        make_tokenizer(pieces, arguments.cache, arguments.vocab_size)
    processes.wait()
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(pieces))
    trainer = begin(arguments, tokenizer.get_piece_size())
    tag = tokenizer.piece_to_id(LANGUAGE_TAG)
    weights = corpus_weights(arguments.weights, arguments.cache)
    corpora = Corpora(
        arguments.cache, lambda text: [*tokenizer.encode(text), tag], weights, frozenset({"en"})
    )
    if not corpora.clips:
        raise SystemExit(f"{arguments.cache} holds no English clips; prepare.py puts them there.")
    if trainer.schedule.aligned(trainer.hours) and "flite" not in corpora.clips:
        raise SystemExit(
            "Speech with times of phones is missing: make it with phones.py speak or, when fine-tuning, pass "
            "--aligned-hours 0 --phone-only-hours 0."
        )
    for number in (signal.SIGINT, signal.SIGTERM):  # save, then end
        signal.signal(number, lambda number, frame: setattr(trainer, "told_to_stop", True))
    record = partial(append, arguments.out / "log.jsonl" if processes.rank == 0 else None)
    head = {"arguments": argv, "schedule": asdict(trainer.schedule), "start": trainer.hours}
    record(head | {"processes": processes.size, "corpora": corpora.hours(), "shares": corpora.shares})
    started, started_hours, saved = time.monotonic(), trainer.hours, time.monotonic()
    recent: list[dict[str, float]] = []
    limit = math.inf if arguments.max_steps is None else arguments.max_steps
    while trainer.hours < trainer.schedule.total_hours and trainer.steps < limit and not trainer.stopped:
        recent.append(trainer.step(corpora))
        if trainer.steps % 100 == 0:
            mean = {key: sum(row[key] for row in recent) / len(recent) for key in recent[0]}
            recent = []
            elapsed = time.monotonic() - started
            speed = (trainer.hours - started_hours) * 3600 / elapsed
            row = {"step": trainer.steps, "hours": round(trainer.hours, 3), "speed": round(speed, 1)}
            record(row | {key: round(value, 5) for key, value in mean.items()})
        if time.monotonic() - saved > arguments.save_minutes * 60:
            save(trainer, arguments.out)
            saved = time.monotonic()
    save(trainer, arguments.out)


if __name__ == "__main__":
    main()
