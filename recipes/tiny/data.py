"""Training data: corpora of cached mel frames, augmentation in the mel domain, batches of bounded size."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from phones import PAUSE, PHONES
from torch import Tensor

PHONE_IDS = {phone: number for number, phone in enumerate(PHONES)} | {PAUSE: -1}
LONGEST = 1600  # mel frames; longer clips are left out
MOST_IN_A_ROW = 8
SHORTEST_PAUSE, LONGEST_PAUSE = 20, 150  # mel frames, between clips in a row
FLOOR = math.log(2.0**-24)  # log-mel of digital silence


@dataclass(frozen=True)
class Clip:
    """One utterance: where its mel frames lie, its token ids, its phones.

    With times (``ends``, in mel frames) the phones include pauses, as -1; without, ``ends`` is empty.
    """

    corpus: str
    offset: int
    frames: int
    tokens: tuple[int, ...]
    phones: tuple[int, ...]
    ends: tuple[int, ...]


def corpus_weights(items: list[str], cache: Path) -> dict[str, float]:
    """The weights of ``CORPUS=X`` items.

    Raises:
        SystemExit: if an item has another form or names no corpus of the cache.
    """
    weights = {}
    for item in items:
        name, _, value = item.partition("=")
        if not (cache / f"{name}.jsonl").exists():
            raise SystemExit(f"--weights {item}: the cache has no corpus {name!r}.")
        try:
            weights[name] = float(value)
        except ValueError:
            raise SystemExit(f"--weights {item}: expected CORPUS=NUMBER, such as {name}=0.5.") from None
    return weights


class Corpora:
    """All corpora of a cache folder, drawn from with a weight each."""

    def __init__(
        self, cache: Path, encode: object, weights: dict[str, float], languages: frozenset[str]
    ) -> None:
        self.mels: dict[str, NDArray[np.float16]] = {}
        self.clips: dict[str, list[Clip]] = {}
        for index in sorted(cache.glob("*.jsonl")):
            name = index.stem
            if weights.get(name, 1.0) <= 0:
                continue
            with index.open(encoding="utf-8") as lines:
                rows = [json.loads(line) for line in lines]
            clips = [
                Clip(
                    name,
                    row["offset"],
                    row["frames"],
                    tuple(encode(row["text"])),  # type: ignore[operator]
                    tuple(PHONE_IDS[phone] for phone in row.get("phones", "").split()),
                    tuple(row.get("ends", ())),
                )
                for row in rows
                if row["lang"] in languages and row["frames"] <= LONGEST
            ]
            if clips:
                self.mels[name] = np.load(cache / f"{name}.mel.npy", mmap_mode="r")
                self.clips[name] = clips
        # a corpus counts by its hours, the larger the less by each, times its weight
        self.shares = {
            name: sum(clip.frames for clip in clips) ** 0.7 * weights.get(name, 1.0)
            for name, clips in self.clips.items()
        }

    def hours(self) -> dict[str, float]:
        """Hours of audio in every corpus."""
        return {
            name: round(sum(clip.frames for clip in clips) / 360000, 2) for name, clips in self.clips.items()
        }

    def draw(
        self, generator: random.Random, only: tuple[str, ...] | None, budget: int, longest: int
    ) -> list[Clip]:
        """Draw clips of similar length, ``budget`` mel frames in all, none above ``longest``.

        ``only`` names the corpora to draw from; None means all.
        """
        names = list(only or self.shares)
        pool = []
        total = 0
        while total < 8 * budget:
            name = generator.choices(names, [self.shares[n] for n in names])[0]
            clip = generator.choice(self.clips[name])
            if clip.frames <= longest:
                pool.append(clip)
                total += clip.frames
        pool.sort(key=lambda clip: clip.frames)
        start = generator.randrange(len(pool))
        while start > 0 and sum(clip.frames for clip in pool[start:]) < budget:
            start -= 1
        chosen: list[Clip] = []
        while start < len(pool) and (len(chosen) + 1) * pool[start].frames <= budget:
            chosen.append(pool[start])
            start += 1
        return chosen or [pool[0]]

    def mel(self, clip: Clip) -> Tensor:
        """Mel frames [T, 128] float32 of a clip."""
        rows = self.mels[clip.corpus][clip.offset : clip.offset + clip.frames]
        return torch.from_numpy(rows.astype(np.float32))


def augment(mel: Tensor, generator: random.Random) -> Tensor:
    """Change tempo, voice, level, noise, echo, band; then hide parts (SpecAugment). [T, F] -> [T', F]."""
    mel = _stretch(mel, generator.uniform(0.85, 1.2), _vocal_tract(generator))
    bins = mel.shape[1]
    noise = torch.Generator().manual_seed(generator.getrandbits(48))
    if generator.random() < 0.3:  # echo: power of earlier frames, decaying
        power, decay = mel.exp(), generator.uniform(0.1, 0.75)
        wet = generator.uniform(0.05, 0.5)
        tail = power.clone()
        for _ in range(4):
            tail[1:] = torch.maximum(tail[1:], tail[:-1] * decay)
        mel = torch.log((1 - wet) * power + wet * tail + math.exp(FLOOR))
    if generator.random() < 0.6:  # coloured noise, with the chi-square spread of a power spectrum
        colour = torch.linspace(0, generator.uniform(-6, 2), bins) + generator.uniform(-1, 1) * torch.sin(
            torch.linspace(0, generator.uniform(1, 9), bins)
        )
        level = float(mel.max()) - generator.uniform(4.0, 14.0)
        draws = torch.rand(mel.shape[0], bins, 3, generator=noise).clamp(min=1e-6).log().neg().mean(2)
        mel = torch.log(mel.exp() + draws * torch.exp(colour + level))
    if generator.random() < 0.5:  # microphone response
        tilt = torch.linspace(0, generator.uniform(-2.5, 2.5), bins)
        mel = mel + tilt
    if generator.random() < 0.15:  # telephone band
        mel = mel.clone()
        mel[:, 128 * bins // 170 :] = FLOOR + generator.uniform(0, 3)
        mel[:, : generator.randint(0, 8)] = FLOOR + generator.uniform(0, 3)
    mel = (mel + generator.uniform(-4.0, 2.5)).clamp(min=FLOOR)
    for _ in range(2):
        width = generator.randint(0, 20)
        begin = generator.randint(0, bins - width)
        mel[:, begin : begin + width] = mel.mean()
    for _ in range(max(1, mel.shape[0] // 150)):
        width = generator.randint(0, 12)
        begin = generator.randint(0, max(0, mel.shape[0] - width))
        mel[begin : begin + width] = mel.mean()
    return mel


def _vocal_tract(generator: random.Random) -> float:
    return generator.uniform(0.85, 1.18)


def _stretch(mel: Tensor, tempo: float, warp: float) -> Tensor:
    """Resample the time axis by ``tempo`` and the lower mel axis by ``warp``, by linear interpolation."""
    frames, bins = mel.shape
    length = max(16, round(frames / tempo))
    mel = torch.nn.functional.interpolate(mel.t()[None], size=length, mode="linear", align_corners=False)[
        0
    ].t()
    position = torch.arange(bins, dtype=torch.float32)
    knee = bins * 0.8
    source = torch.where(
        position < knee,
        position * warp,
        knee * warp + (position - knee) * (bins - 1 - knee * warp) / (bins - 1 - knee),
    ).clamp(0, bins - 1)
    low = source.floor().long().clamp(max=bins - 2)
    part = source - low
    return mel[:, low] * (1 - part) + mel[:, low + 1] * part


@dataclass(frozen=True)
class Batch:
    """mel [B, T, F], tokens [B, U] and phones [B, W] (padded with 0) and their lengths.

    ``aligned`` [B, T] is the phone that is spoken in every mel frame, -1 in silence and where it is unknown.
    """

    mel: Tensor
    mel_lengths: Tensor
    tokens: Tensor
    token_lengths: Tensor
    phones: Tensor
    phone_lengths: Tensor
    aligned: Tensor


def in_a_row(clips: list[Clip], generator: random.Random) -> list[list[Clip]]:
    """Let clips of a batch follow one another, so that the model learns to go on after a sentence."""
    size = generator.randint(2, MOST_IN_A_ROW)
    longest = max(clip.frames for clip in clips) + LONGEST_PAUSE
    size = max(1, min(size, LONGEST // longest, len(clips)))
    mixed = generator.sample(clips, len(clips))
    return [mixed[start : start + size] for start in range(0, len(mixed), size)]


def collate(corpora: Corpora, rows: list[list[Clip]], augmented: float, generator: random.Random) -> Batch:
    """Load, augment (a share ``augmented`` of the clips), join the clips of a row by pauses, and pad."""
    lead = generator.randint(0, 24)  # speech does not begin at the same place in every chunk
    mels: list[Tensor] = []
    phones: list[Tensor] = []
    for row in rows:
        heard: list[Tensor] = []
        spoken: list[Tensor] = []
        for place, clip in enumerate(row):
            mel = corpora.mel(clip)
            if generator.random() < augmented:
                mel = augment(mel, generator)
            pause = lead if place == 0 else generator.randint(SHORTEST_PAUSE, LONGEST_PAUSE)
            heard += [torch.full((pause, mel.shape[1]), float(mel.min())), mel]
            spoken.append(align(clip, pause, pause + len(mel)))
        mels.append(torch.cat(heard))
        phones.append(torch.cat(spoken))
    return Batch(
        torch.nn.utils.rnn.pad_sequence(mels, batch_first=True),
        torch.tensor([len(mel) for mel in mels]),
        *_padded([sum((clip.tokens for clip in row), ()) for row in rows]),
        *_padded([tuple(phone for clip in row for phone in clip.phones if phone >= 0) for row in rows]),
        torch.nn.utils.rnn.pad_sequence(phones, batch_first=True, padding_value=-1),
    )


def align(clip: Clip, lead: int, frames: int) -> Tensor:
    """The phone of every mel frame [frames] of a clip that was stretched and put behind ``lead`` frames."""
    if not clip.ends:
        return torch.full((frames,), -1)
    time = (torch.arange(frames) - lead) * clip.frames / (frames - lead)
    index = torch.searchsorted(torch.tensor(clip.ends, dtype=torch.float32), time, right=True)
    phone = torch.tensor((*clip.phones, -1))[index.clamp(max=len(clip.phones))]
    return torch.where(time >= 0, phone, -1)


def _padded(rows: list[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    tensors = [torch.tensor(row, dtype=torch.int64) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True), torch.tensor(
        [len(row) for row in rows]
    )
