"""Train a small streaming model: phones first, then RNN-T. Resumable; one core or a GPU.

    python recipes/tiny/train.py --cache work/cache --out work/run --audio-hours 300

Every batch draws its right context at random from the trained set, so one model serves every latency. The
learning rate follows the audio seen, not the clock. ``--out`` holds ``state.pt`` (to resume), ``log.jsonl``
and, after each save, ``checkpoint/``: an averaged model as a Hugging Face folder.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from loss import rnnt_loss
from numpy.typing import NDArray
from phones import PHONES
from torch import Tensor, nn

from data import Corpora, collate
from nemostream.checkpoints import load_checkpoint
from nemostream.config import ModelConfig
from nemostream.model.network import Network

CORPUS_WEIGHTS = {"orders": 0.5, "digits": 0.35, "kathleen": 1.2}
PHONES_PER_FRAME = 4  # the auxiliary head's resolution: a phone can be much shorter than a frame
LANGUAGE_TAG = "<en-US>"
PROMPTS = {"en-US": 0, "en": 0, "auto": 101}


@dataclass(frozen=True)
class Schedule:
    """How training unfolds over the audio seen; hours are of audio."""

    total_hours: float
    peak_rate: float = 1.2e-3
    warmup_hours: float = 1.0
    aligned_hours: float = 2.0  # phones with times, from the corpus "flite"
    phone_only_hours: float = 8.0
    easy_hours: float = 20.0  # short clips, small batches, little augmentation
    phone_weight: float = 0.3
    batch_seconds: float = 60.0

    def rate(self, hours: float) -> float:
        """Linear warm-up, then cosine to two percent of the peak."""
        warm = min(1.0, (hours + 0.02) / self.warmup_hours)
        progress = min(1.0, hours / self.total_hours)
        return self.peak_rate * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))

    def batch(self, hours: float) -> float:
        """Seconds of audio in a batch: half as many, so twice the updates, until the alignment is found."""
        return self.batch_seconds / 2 if hours < self.easy_hours else self.batch_seconds

    def augmentation(self, hours: float) -> float:
        """Share of clips to augment: few until the alignment is found."""
        return 0.3 if hours < self.easy_hours else 0.9

    def aligned(self, hours: float) -> float:
        """Share of batches with times of phones: all, then some until the model aligns by itself."""
        return 1.0 if hours < self.aligned_hours else 0.15 if hours < self.easy_hours else 0.0

    def longest_seconds(self, hours: float) -> float:
        """Short clips first."""
        if hours < self.phone_only_hours * 1.5:
            return 5.5
        return 8.0 if hours < self.easy_hours * 0.75 else 16.0


def tiny_config(vocab_size: int) -> ModelConfig:
    """The embedded model's dimensions."""
    return ModelConfig(
        hidden_size=160,
        num_layers=6,
        num_heads=4,
        intermediate_size=640,
        subsampling_channels=32,
        conv_kernel_size=9,
        predictor_hidden_size=160,
        predictor_layers=2,
        joint_hidden_size=160,
        vocab_size=vocab_size,
        att_context_sizes=((56, 3), (56, 0), (56, 1), (56, 6), (56, 13)),
        num_prompts=128,
        prompt_intermediate_size=320,
        prompts=PROMPTS,
        default_language="auto",
    )


def train_tokenizer(cache: Path, path: Path, vocab_size: int) -> sentencepiece.SentencePieceProcessor:
    """Make (once) and load the tokenizer: BPE with capitals and punctuation, and the language tag."""
    if not path.exists():
        texts = []
        for index in sorted(cache.glob("*.jsonl")):
            rows = [json.loads(line) for line in index.open(encoding="utf-8")]
            texts += [row["text"] for row in rows if row["lang"] == "en"][:20000]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_prefix=str(path.with_suffix("")),
            vocab_size=vocab_size,
            model_type="bpe",
            character_coverage=1.0,
            user_defined_symbols=[LANGUAGE_TAG],
            bos_id=-1,
            eos_id=-1,
            minloglevel=2,
        )
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def aligned_loss(log_phones: Tensor, aligned: Tensor) -> Tensor:
    """Cross entropy of the phones of mel frames [B, T], for log probabilities [B, slots, phones + 1].

    Slot s of encoder frame k covers the mel frames 8 k - 8 + 2 s and the next: the frame sees no further.
    Silence counts as the blank.
    """
    slots = nn.functional.pad(aligned, (8, 8), value=-1)[:, :: 8 // PHONES_PER_FRAME][
        :, : log_phones.shape[1]
    ]
    slots = nn.functional.pad(slots, (0, log_phones.shape[1] - slots.shape[1]), value=-1)
    target = torch.where(slots < 0, len(PHONES), slots)
    return nn.functional.nll_loss(log_phones.flatten(0, 1), target.flatten())


class CentredConvolution(nn.Module):
    """The stem's first convolution with its bias counted from the mean of log-mel frames.

    Log-mels are far from zero (mean -12, spread 4), which makes for slow learning. The function is that of
    the plain convolution whose weights `plain` returns, so nothing remains of this in the trained model.
    """

    MEAN, SPREAD = -12.0, 4.0

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        assert convolution.bias is not None
        self.stride = convolution.stride
        self.weight, self.bias = nn.Parameter(convolution.weight.data), nn.Parameter(convolution.bias.data)

    def plain(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Weight and bias of the equal plain convolution."""
        weight = weight / self.SPREAD
        return weight, bias - self.MEAN * weight.sum(dim=(1, 2, 3))

    def centred(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The inverse of `plain`."""
        return weight * self.SPREAD, bias + self.MEAN * weight.sum(dim=(1, 2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """[B, 1, T, F] -> [B, C, T', F']."""
        return nn.functional.conv2d(x, *self.plain(self.weight, self.bias), stride=self.stride)


class Trainer:
    """Network, auxiliary head, optimiser and running average."""

    def __init__(self, config: ModelConfig, schedule: Schedule, seed: int) -> None:
        torch.manual_seed(seed)
        self.config, self.schedule = config, schedule
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = Network(config, dropout=0.1).to(self.device)
        self.network.encoder.subsampling.conv_in = CentredConvolution(
            self.network.encoder.subsampling.conv_in
        )
        # on a CPU the backward pass of depthwise convolutions is six times slower in bf16 than in fp32
        stem = self.network.encoder.subsampling.to(memory_format=torch.channels_last)
        stem.forward = torch.autocast(self.device.type, enabled=False)(stem.forward)
        self.ctc_head = nn.Linear(config.hidden_size, PHONES_PER_FRAME * (len(PHONES) + 1)).to(self.device)
        decay, plain = [], []
        for parameter in (*self.network.parameters(), *self.ctc_head.parameters()):
            (decay if parameter.ndim >= 2 else plain).append(parameter)
        self.optimizer = torch.optim.AdamW(
            [{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
            betas=(0.9, 0.98),
            fused=True,
        )
        self.average = {name: value.detach().clone() for name, value in self.network.state_dict().items()}
        self.random = random.Random(seed)
        self.hours = 0.0
        self.steps = 0

    def losses(self, corpora: Corpora) -> tuple[Tensor | None, Tensor, float]:
        """RNN-T loss per token (None at first), phone loss (CTC or aligned), and the hours of audio."""
        longest = int(self.schedule.longest_seconds(self.hours) * 100)
        aligned = self.random.random() < self.schedule.aligned(self.hours)
        only = ("flite",) if aligned else None
        clips = corpora.draw(self.random, only, int(self.schedule.batch(self.hours) * 100), longest)
        batch = collate(corpora, clips, self.schedule.augmentation(self.hours), self.random)
        att_context_size = self.random.choice(self.config.att_context_sizes)
        prompt = torch.tensor([self.random.choice((PROMPTS["en-US"], PROMPTS["auto"])) for _ in clips])
        device = self.device
        mel, mel_lengths = batch.mel.to(device), batch.mel_lengths.to(device)
        tokens, token_lengths = batch.tokens.to(device), batch.token_lengths.to(device)
        with torch.autocast(device.type, torch.bfloat16):
            encoded, frames = self.network.encoder.encode_utterance(mel, mel_lengths, att_context_size)
            ctc_logits = (
                self.ctc_head(encoded).unflatten(2, (PHONES_PER_FRAME, len(PHONES) + 1)).flatten(1, 2)
            )
        rnnt = None
        if self.hours >= self.schedule.phone_only_hours:
            # in fp32: rounded to bf16, these small parts stay on their plateau for hours
            projected = self.network.project(encoded.float(), prompt.to(device))
            start = torch.full_like(tokens[:, :1], self.config.blank_id)
            predicted, _ = self.network.decoder(
                torch.cat([start, tokens], 1), self.network.initial_predictor_state(len(clips))
            )
            with torch.autocast(device.type, torch.bfloat16):
                logits = self.network.joint(projected[:, :, None], predicted[:, None])
            rnnt = rnnt_loss(logits, tokens, frames, token_lengths, self.config.blank_id).sum()
        log_phones = torch.log_softmax(ctc_logits.float(), 2)
        if aligned:
            phone = aligned_loss(log_phones, batch.aligned.to(device))
        else:
            ctc = nn.functional.ctc_loss(
                log_phones.transpose(0, 1),
                batch.phones.to(device),
                frames * PHONES_PER_FRAME,
                batch.phone_lengths.to(device),
                blank=len(PHONES),
                reduction="sum",
                zero_infinity=True,
            )
            phone = ctc / batch.phone_lengths.sum()
        return None if rnnt is None else rnnt / token_lengths.sum(), phone, float(mel_lengths.sum()) / 360000

    def step(self, corpora: Corpora) -> dict[str, float]:
        """One update; returns what the log records."""
        rnnt, phone, hours = self.losses(corpora)
        loss = phone if rnnt is None else rnnt + self.schedule.phone_weight * phone
        rate = self.schedule.rate(self.hours)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, 5.0)
        if torch.isfinite(norm):
            self.optimizer.step()
        with torch.no_grad():  # the blank row is the predictor's start and must stay zero
            self.network.decoder.embedding.weight[self.config.blank_id] = 0.0
            keep = min(0.998, (1 + self.steps) / (10 + self.steps))
            torch._foreach_lerp_(
                list(self.average.values()), list(self.network.state_dict().values()), 1 - keep
            )
        self.hours += hours
        self.steps += 1
        return {
            "phone": phone.item(),
            "rnnt": math.nan if rnnt is None else rnnt.item(),
            "norm": norm.item(),
            "rate": rate,
        }

    def start_from(self, weights: dict[str, NDArray[np.generic]]) -> None:
        """Begin with the weights of a checkpoint of the same dimensions instead of random ones."""
        centred = self.network.encoder.subsampling.conv_in
        tensors = {name: torch.from_numpy(value).float() for name, value in weights.items()}
        stem = "encoder.subsampling.conv_in."
        tensors[stem + "weight"], tensors[stem + "bias"] = centred.centred(
            tensors[stem + "weight"], tensors[stem + "bias"]
        )
        self.network.load_state_dict(tensors)
        self.average = {name: value.detach().clone() for name, value in self.network.state_dict().items()}

    def state_dict(self) -> dict[str, object]:
        """All that is needed to go on as if nothing had happened."""
        return {
            "network": self.network.state_dict(),
            "ctc_head": self.ctc_head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average,
            "hours": self.hours,
            "steps": self.steps,
            "random": json.dumps(self.random.getstate()),
            "torch_random": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on from `state_dict`."""
        self.network.load_state_dict(state["network"])  # type: ignore[arg-type]
        self.ctc_head.load_state_dict(state["ctc_head"])  # type: ignore[arg-type]
        self.optimizer.load_state_dict(state["optimizer"])  # type: ignore[arg-type]
        self.average = state["average"]  # type: ignore[assignment]
        self.hours, self.steps = state["hours"], state["steps"]  # type: ignore[assignment]
        version, numbers, gauss = json.loads(state["random"])  # type: ignore[arg-type]
        self.random.setstate((version, tuple(numbers), gauss))
        torch.set_rng_state(state["torch_random"])  # type: ignore[arg-type]


def save(trainer: Trainer, out: Path) -> None:
    """Write the resume state and the averaged weights, each in one move so that a kill can't tear them."""
    temporary = out / "state.tmp"
    torch.save(trainer.state_dict(), temporary)
    temporary.rename(out / "state.pt")
    weights = dict(trainer.average)
    stem = "encoder.subsampling.conv_in."
    weights[stem + "weight"], weights[stem + "bias"] = trainer.network.encoder.subsampling.conv_in.plain(
        weights[stem + "weight"], weights[stem + "bias"]
    )
    torch.save({"config": trainer.config.to_dict(), "weights": weights}, out / "average.tmp")
    (out / "average.tmp").rename(out / "average.pt")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, required=True, help="folder that prepare.py wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--audio-hours", type=float, required=True, help="audio to see, in hours")
    parser.add_argument("--start-from", type=Path, help="checkpoint folder to fine-tune")
    parser.add_argument("--vocab-size", type=int, default=256)
    parser.add_argument("--aligned-hours", type=float, default=2.0)
    parser.add_argument("--phone-only-hours", type=float, default=8.0)
    parser.add_argument("--easy-hours", type=float, default=20.0)
    parser.add_argument("--batch-seconds", type=float, default=60.0)
    parser.add_argument("--peak-rate", type=float, default=1.2e-3)
    parser.add_argument("--save-minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # two threads on a busy machine fall to a fraction of one
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.start_from is not None:
        shutil.copy(arguments.start_from / "tokenizer.model", arguments.out / "tokenizer.model")
    tokenizer = train_tokenizer(arguments.cache, arguments.out / "tokenizer.model", arguments.vocab_size)
    schedule = Schedule(
        arguments.audio_hours,
        peak_rate=arguments.peak_rate,
        aligned_hours=arguments.aligned_hours,
        phone_only_hours=arguments.phone_only_hours,
        easy_hours=arguments.easy_hours,
        batch_seconds=arguments.batch_seconds,
    )
    trainer = Trainer(tiny_config(tokenizer.get_piece_size()), schedule, arguments.seed)
    if (arguments.out / "state.pt").exists():
        trainer.load_state_dict(torch.load(arguments.out / "state.pt", weights_only=True))
    elif arguments.start_from is not None:
        trainer.start_from(load_checkpoint(arguments.start_from).tensors)
    tag = tokenizer.piece_to_id(LANGUAGE_TAG)
    corpora = Corpora(
        arguments.cache, lambda text: [*tokenizer.encode(text), tag], CORPUS_WEIGHTS, frozenset({"en"})
    )
    log = (arguments.out / "log.jsonl").open("a", encoding="utf-8")
    log.write(json.dumps({"schedule": asdict(schedule), "shares": corpora.shares}) + "\n")
    begin, begin_hours, saved = time.monotonic(), trainer.hours, time.monotonic()
    recent: list[dict[str, float]] = []
    while trainer.hours < schedule.total_hours:
        recent.append(trainer.step(corpora))
        if trainer.steps % 100 == 0:
            mean = {key: sum(row[key] for row in recent) / len(recent) for key in recent[0]}
            recent = []
            elapsed = time.monotonic() - begin
            speed = (trainer.hours - begin_hours) * 3600 / elapsed
            row = {"step": trainer.steps, "hours": round(trainer.hours, 3), "speed": round(speed, 1)}
            log.write(json.dumps(row | {key: round(value, 5) for key, value in mean.items()}) + "\n")
            log.flush()
        if time.monotonic() - saved > arguments.save_minutes * 60:
            save(trainer, arguments.out)
            saved = time.monotonic()
    save(trainer, arguments.out)


if __name__ == "__main__":
    main()
