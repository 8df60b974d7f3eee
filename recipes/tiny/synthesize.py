"""Speak a list of sentences with thousands of virtual voices, for training a small recogniser.

``python recipes/tiny/synthesize.py --texts texts.tsv --out DIR --hours 60`` (sentences: ``texts.py``)
writes ``DIR/NNN/NNNNNN.flac`` (16 kHz mono 16 bit) and appends to ``DIR/manifest.jsonl`` clip by clip, so
that training can start on a part. Clip ``i`` depends only on the seed, ``i``, the list and the shares; a
second call goes on where the first ended. Engines:

- *hibari* (``pip install hibari-tts``, Apache-2.0, one voice) hands out its spectrum before the waveform:
  harmonic and residual magnitudes [601 bins of 20 Hz, F frames of 12.5 ms], F0, and a noise part too faint
  to matter (-40 dB). Pitch, pitch range, vocal-tract length, single formants, tilt, a random equaliser,
  breath, tempo and a few regular accent rules are changed there; the inverse STFT then runs at 16 kHz
  directly (800-point frames, hop 200, have the same 20 Hz bins).
- *flite* and *espeak-ng* (programs; voices and variants) are changed in the waveform: speaking at 1/r of
  the pace and reading the samples r times faster shifts pitch and formants together by r.

A clip is dropped when its pace is implausible (outside 0.15 to 0.9 s a word) or nothing was spoken.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.fft
import scipy.signal
import soundfile
import soxr
from hibari import Hibari
from numpy.typing import NDArray

Audio = NDArray[np.float32]
Params = dict[str, Any]

RATE = 16000
N_FFT, HOP, BINS = 800, 200, 401  # hibari's 50 ms frames and 12.5 ms hop, at 16 kHz
BIN_HZ = RATE / N_FFT
WINDOW = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)).astype(np.float32)
VOICED_HZ = 40.0  # below it hibari means "unvoiced"
MAX_SECONDS, PACE = 10.0, (0.15, 0.9)  # pace: plausible seconds a word
PER_SHARD = 1000
FLITE_HZ = {"slt": 180, "rms": 95, "awb": 130, "kal16": 105}  # voice and its usual pitch
_ESPEAK_VOICES = """en-us en-us en-us en-us-nyc en-gb en-gb-x-rp en-gb-scotland en-gb-x-gbclan en-029"""
_ESPEAK_VARIANTS = """m1 m2 m3 m4 m5 m6 m7 m8 f1 f2 f3 f4 f5 klatt klatt2 klatt3 klatt4 Alex Alicia Andrea
Andy Annie Gene Henrique Hugo Jacky Lee Mario Michael Mike adam anika antonio belinda boris david ed edward
gustave iven john linda max michel norbert pablo paul pedro quincy rob robert sandro shelby steph travis
victor zac"""
ESPEAK_VOICES, ESPEAK_VARIANTS = _ESPEAK_VOICES.split(), _ESPEAK_VARIANTS.split()
# Regular differences of accent, on hibari's phonemes: (name, pattern, replacement, share of speakers).
ACCENTS = (
    ("tap-to-t", r"T", "t", 0.35),
    ("cot-caught", r"ɔ(?!ɹ|ˈ)", "ɑ", 0.3),
    ("weak-schwa", r"ᵻ", "ə", 0.3),
    ("weak-i", r"ᵻ", "ɪ", 0.4),
    ("non-rhotic", r"(?<=[ɑɔə])ɹ(?=[^ˈˌɑɐæɛəɜiɪoOuʊAIWYQʌᵻᵊa]|$)", "", 0.1),
    ("th-stop", r"ð", "d", 0.03),
)


def _pulses(f0: Audio) -> Audio:
    """Every harmonic of ``f0`` [F] (Hz a frame) below 7.8 kHz at unit amplitude, as [F * HOP] samples."""
    frames = (np.arange(len(f0) * HOP) + 0.5) / HOP - 0.5
    hz = np.interp(frames, np.arange(len(f0)), f0)
    voiced = hz > VOICED_HZ
    hz = np.maximum(hz, VOICED_HZ)
    half = (np.pi * (np.cumsum(hz / RATE) % 1.0)).astype(np.float32)  # half the phase of the fundamental
    count = (2.0 * np.floor(7800.0 / hz) + 1.0).astype(np.float32)
    below = np.sin(half)
    near = np.abs(below) < 1e-3  # the limit of sin(n x) / sin(x) is n
    below[near] = 1.0
    out = np.where(near, count, np.sin(count * half) / below) / 2 - 0.5
    return np.where(voiced, out, 0.0).astype(np.float32)


def _analyse(signal: Audio, frames: int) -> NDArray[np.complex64]:
    """Hann STFT [frames, BINS], scaled so that a unit cosine peaks at hibari's harmonic magnitude."""
    padded = np.pad(signal, N_FFT // 2, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP][:frames]
    return np.asarray(scipy.fft.rfft(windows * (WINDOW * (4 / N_FFT)), axis=1), np.complex64)


def _overlap_add(spectrum: NDArray[np.complex64]) -> Audio:
    """Inverse STFT of [F, BINS]; Hann squared at a quarter hop sums to 1.5 everywhere but the edges."""
    frames = scipy.fft.irfft(spectrum, n=N_FFT, axis=1) * (WINDOW / 1.5)
    blocks = frames.reshape(len(frames), 4, HOP)
    out = np.zeros((len(frames) + 3, HOP), np.float32)
    for k in range(4):
        out[k : k + len(frames)] += blocks[:, k]
    return out.reshape(-1)[N_FFT // 2 : -N_FFT // 4]


def _polar(log_magnitude: Audio, angle: Audio) -> NDArray[np.complex64]:
    out = np.empty(angle.shape, np.complex64)
    magnitude = np.exp(log_magnitude)
    np.multiply(magnitude, np.cos(angle), out=out.real)
    np.multiply(magnitude, np.sin(angle), out=out.imag)
    return out


def hibari_voice(rng: np.random.Generator) -> Params:
    """Draw one speaker; long vocal tracts (low ``formant``) go with low pitch, loosely, as in people."""
    pitch = float(np.exp(rng.uniform(np.log(0.48), np.log(1.55))))
    return {
        "pitch": pitch,
        "range": float(rng.uniform(0.5, 1.5)),
        "formant": float(np.clip(np.exp(rng.normal(0.22 * np.log(pitch), 0.07)), 0.8, 1.2)),
        "bend": [float(x) for x in rng.normal(0, 0.025, 4)],  # formant places at 0.7, 1.7, 3, 5 kHz, relative
        "tilt": float(rng.normal(0, 1.5)),  # dB an octave above 500 Hz
        "eq": [float(x) for x in rng.normal(0, 2.5, 7)],  # dB at 0, 0.3, 0.8, 1.8, 3.5, 6, 8 kHz
        "cut": float(rng.uniform(3400, 7000)) if rng.random() < 0.15 else None,  # low-pass of the line, Hz
        "breath": float(rng.uniform(-0.7, 0.6)),  # nepers on the noisy part of voiced frames
        "speed": float(np.exp(rng.uniform(np.log(0.8), np.log(1.3)))),
        "sway": float(rng.uniform(0, 0.15)),  # spread of the local tempo
        "accent": [name for name, _, _, share in ACCENTS if rng.random() < share],
    }


def _source_bins(voice: Params) -> Audio:
    """For every output bin, the (fractional) bin of the original spectrum that it is read from."""
    knots = np.array([0, 700, 1700, 3000, 5000, 8000]) / BIN_HZ
    bend = 1 + np.array([0, *voice["bend"], 0])
    return np.asarray(np.interp(np.arange(BINS), knots, knots * bend / voice["formant"]).clip(0, 599))


def _equaliser(voice: Params) -> Audio:
    """Gain of every output bin, in nepers."""
    hz = np.arange(BINS) * BIN_HZ
    db = np.interp(hz, [0, 300, 800, 1800, 3500, 6000, 8000], voice["eq"])
    db += voice["tilt"] * np.log2(np.maximum(hz, 500) / 500)
    if voice["cut"] is not None:
        db -= np.clip((hz - voice["cut"]) / 10, 0, 45)
    return np.asarray(db * (np.log(10) / 20), np.float32)


def _frame_path(frames: int, sway: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Original frame of every new frame: a tempo that wanders by ``sway`` with knots every 0.5 s."""
    knots = np.arange(0, frames + 80, 40)
    tempo = np.exp(np.interp(np.arange(frames), knots, rng.normal(0, sway, len(knots))))
    reached = np.cumsum(1 / tempo)
    return np.interp(np.arange(0.5, reached[-1]), reached, np.arange(frames)).round().astype(np.int64)


def speak_hibari(tts: Hibari, text: str, voice: Params, rng: np.random.Generator) -> Audio:
    """Synthesize ``text`` with the speaker ``voice``; 16 kHz, any level."""
    phonemes = " ".join(tts.phonemize(text))
    for name, pattern, replacement, _ in ACCENTS:
        if name in voice["accent"]:
            phonemes = re.sub(pattern, replacement, phonemes)
    ids, speed = np.array([tts.ids(phonemes)], np.int64), np.array([voice["speed"]], np.float32)
    harmonic, theta, _, residual, phi, f0 = (o[0] for o in tts.sess.run(None, {"ids": ids, "speed": speed}))
    path = _frame_path(len(f0), voice["sway"], rng)
    place = _source_bins(voice)
    low, part = place.astype(np.int64), (place % 1).astype(np.float32)
    gain = _equaliser(voice)

    def level(log_magnitude: Audio) -> Audio:
        rows = np.ascontiguousarray(log_magnitude.T)[path]
        return rows[:, low] * (1 - part) + rows[:, low + 1] * part + gain

    f0 = f0[path]
    voiced = f0 > VOICED_HZ
    if voiced.any():
        middle = float(np.median(f0[voiced]))
        f0 = np.where(voiced, middle * voice["pitch"] * (np.maximum(f0, 1) / middle) ** voice["range"], 0)
    f0 = np.where(voiced, np.clip(f0, 60, 550), 0).astype(np.float32)
    breath = np.where(voiced, voice["breath"], 0).astype(np.float32)[:, None]
    nearest = place.round().astype(np.int64)
    louder = np.float32(0.5 * np.log(voice["pitch"]))  # fewer harmonics carry the same power
    spectrum = _analyse(_pulses(f0), len(path))
    spectrum *= _polar(level(harmonic) + louder, np.tanh(theta.T[path][:, nearest]) * np.float32(np.pi))
    spectrum += _polar(level(residual) + breath, phi.T[path][:, nearest])
    return _overlap_add(spectrum)


def command_voice(engine: str, rng: np.random.Generator) -> Params:
    """Draw a voice of flite or espeak-ng."""
    speed = float(np.exp(rng.uniform(np.log(0.8), np.log(1.3))))
    voice: Params = {"speed": speed, "shift": float(rng.uniform(0.86, 1.16))}
    if engine == "flite":
        voice["name"] = str(rng.choice(list(FLITE_HZ)))
        voice["pitch"] = float(rng.uniform(0.8, 1.25))
    else:
        voice["name"] = f"{rng.choice(ESPEAK_VOICES)}+{rng.choice(ESPEAK_VARIANTS)}"
        voice["pitch"] = int(rng.integers(20, 80))
    return voice


def speak_command(engine: str, text: str, voice: Params) -> Audio:
    """Synthesize with flite or espeak-ng, then read the samples ``shift`` times faster; 16 kHz, any level."""
    pace = voice["speed"] / voice["shift"]
    if engine == "flite":
        command = ["flite", "-voice", voice["name"], "--setf", f"duration_stretch={1 / pace:.3f}"]
        hertz = FLITE_HZ[voice["name"]] * voice["pitch"]
        command += ["--setf", f"int_f0_target_mean={hertz:.1f}", "-t", text, "-o", "/dev/stdout"]
    else:
        command = ["espeak-ng", "-v", voice["name"], "-s", f"{165 * pace:.0f}", "-p", str(voice["pitch"])]
        command += ["--stdout", "--", text]
    data = subprocess.run(command, check=True, capture_output=True, timeout=20).stdout
    if data[:4] == b"RIFF":  # espeak-ng leaves the lengths open; the samples start after 44 bytes
        rate = int.from_bytes(data[24:28], "little")
        samples = np.frombuffer(data[44 : len(data) - len(data) % 2], "<i2").astype(np.float32) / 32768
    else:
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32")
    return np.asarray(soxr.resample(samples, rate * voice["shift"], RATE), np.float32)


def finish(audio: Audio, rng: np.random.Generator) -> tuple[Audio, float]:
    """Trim, pad with 0.05 to 0.4 s of faint noise, set the level; returns the clip and the spoken seconds."""
    block = 160
    rms = np.sqrt(np.mean(audio[: len(audio) // block * block].reshape(-1, block) ** 2, axis=1))
    if not len(rms) or rms.max() < 1e-5:
        return audio[:0], 0.0
    loud = np.flatnonzero(rms > rms.max() * 0.01)
    speech = audio[max(loud[0] - 1, 0) * block : (loud[-1] + 2) * block]
    active = float(np.sqrt(np.mean(rms[rms > rms.max() * 0.1] ** 2)))
    level = 10 ** (rng.uniform(-30, -17) / 20)
    gain = min(level / active, 0.9 / float(np.abs(speech).max()))
    pads = rng.uniform(0.05, 0.4, 2) * RATE
    out = np.pad(speech * gain, (int(pads[0]), int(pads[1])))
    hiss = scipy.signal.lfilter([1.0], [1.0, -rng.uniform(0, 0.95)], rng.standard_normal(len(out)))
    floor = level * 10 ** (rng.uniform(-60, -32) / 20)
    return (out + hiss * (floor / hiss.std())).astype(np.float32), len(speech) / RATE


def speak(
    index: int, seed: int, text: str, tts: Hibari, shares: dict[str, float]
) -> tuple[Audio, float, str, Params]:
    """Clip ``index``: audio, spoken seconds, engine, voice."""
    rng = np.random.default_rng((seed, index))
    engine = str(rng.choice(list(shares), p=list(shares.values())))
    if engine == "hibari":
        voice = hibari_voice(rng)
        audio = speak_hibari(tts, text, voice, rng)
    else:
        voice = command_voice(engine, rng)
        audio = speak_command(engine, text, voice)
    return *finish(audio, rng), engine, voice


def _round(value: Any) -> Any:
    if isinstance(value, list):
        return [_round(v) for v in value]
    if isinstance(value, dict):
        return {k: _round(v) for k, v in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def main() -> None:
    """Generate until ``--hours`` are there or ``--minutes`` have passed."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("--out", type=Path, required=True, help="folder for the clips and manifest.jsonl")
    parser.add_argument("--texts", type=Path, required=True, help="TSV of source and sentence, in order")
    parser.add_argument("--hours", type=float, default=1.0, help="hours of audio to have in the end")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this much time")
    parser.add_argument("--flite", type=float, default=0.1, help="share of clips spoken by flite")
    parser.add_argument("--espeak", type=float, default=0.05, help="share of clips spoken by espeak-ng")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    pairs = [line.split("\t") for line in args.texts.read_text().splitlines()]
    shares = {"hibari": 1 - args.flite - args.espeak, "flite": args.flite, "espeak": args.espeak}
    args.out.mkdir(parents=True, exist_ok=True)
    manifest = args.out / "manifest.jsonl"
    done = [json.loads(line) for line in manifest.open()] if manifest.exists() else []
    seconds = sum(row["duration"] for row in done)
    index = done[-1]["index"] + 1 if done else 0
    start, first, dropped, tts = time.monotonic(), seconds, 0, Hibari(threads=1)
    with manifest.open("a") as out:
        while seconds < args.hours * 3600 and time.monotonic() - start < args.minutes * 60:
            source, text = pairs[index % len(pairs)]  # a second round over the list has other voices
            audio, spoken, engine, voice = speak(index, args.seed, text, tts, shares)
            if PACE[0] <= spoken / len(re.split(r"[ -]", text)) <= PACE[1] and spoken < MAX_SECONDS:
                path = Path(f"{index // PER_SHARD:03d}") / f"{index:06d}.flac"
                (args.out / path.parent).mkdir(exist_ok=True)
                soundfile.write(args.out / path, audio, RATE, subtype="PCM_16")
                row = {"audio_filepath": str(path), "duration": round(len(audio) / RATE, 3), "text": text}
                row |= {"lang": "en", "source": source, "engine": engine, "voice": _round(voice)}
                row["index"] = index
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
                out.flush()
                seconds += row["duration"]
            else:
                dropped += 1
            index += 1
            if index % PER_SHARD == 0:
                rate = (seconds - first) / (time.monotonic() - start)
                hours = f"{seconds / 3600:.2f} h, {rate:.0f} times real time"
                print(f"{index} sentences, {dropped} dropped, {hours}", flush=True)
    print(f"{seconds / 3600:.2f} h in {manifest}")


if __name__ == "__main__":
    main()
