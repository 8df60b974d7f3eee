"""Write the model card of a checkpoint: how well it hears, what it learned from, its hash.

    python recipes/tiny/card.py --run work/run --checkpoint work/checkpoint --parts PARTS_FOLDER --out CARD.md

Every part is transcribed by the ONNX bundle of the checkpoint with fp16 weights at every latency, and with
int8 and int4 weights at 1120 and 320 ms. What is known of the run comes from its log, what is known of the
corpora from ``corpora.toml``, the words from ``card.md``. ``--start`` says in a sentence what it began with.
"""

from __future__ import annotations

import argparse
import hashlib
import shlex
import tempfile
import tomllib
from pathlib import Path

from plot import read_log

import nemostream
from evaluate import ENGLISH_PARTS, LATENCIES, Result, evaluate
from nemostream.checkpoints import load_checkpoint
from nemostream.export.linear import Weights
from nemostream.export.onnx import export_onnx
from nemostream.runtimes.torch import load_network

QUANTISED_LATENCIES = (1120, 320)
ROW_LATENCY = 320
CORPORA = Path(__file__).with_name("corpora.toml")

TEMPLATE = Path(__file__).with_name("card.md")


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def percent(result: Result, latency: int) -> str:
    """Word error rate at one latency."""
    return f"{100 * result.rates[latency]:.1f}"


def full_table(results: dict[str, Result], joined: dict[str, Result]) -> str:
    """Part against latency, and all clips of a part in a row."""
    rows = [
        [
            part,
            str(result.clips),
            str(result.words),
            *(percent(result, ms) for ms in LATENCIES),
            percent(joined[part], ROW_LATENCY),
        ]
        for part, result in results.items()
    ]
    head = ["part", "clips", "words", *(f"{ms} ms" for ms in LATENCIES), f"in a row, {ROW_LATENCY} ms"]
    return table(head, rows)


def quantised_table(results: dict[str, dict[str, Result]]) -> str:
    """Part against weights and latency."""
    columns = [(name, ms) for ms in QUANTISED_LATENCIES for name in results]
    rows = [[part, *(percent(results[name][part], ms) for name, ms in columns)] for part in results["fp16"]]
    return table(["part", *(f"{name}, {ms} ms" for name, ms in columns)], rows)


def data_table(hours: dict[str, float]) -> str:
    """The corpora of a run, with their hours.

    Raises:
        SystemExit: if ``corpora.toml`` does not describe one.
    """
    described = tomllib.loads(CORPORA.read_text(encoding="utf-8"))
    unknown = set(hours) - {name for entry in described.values() for name in entry["names"]}
    if unknown:
        raise SystemExit(f"Add {', '.join(sorted(unknown))} to {CORPORA.name}: origin, voices, licence.")
    rows = []
    for entry in described.values():
        amount = sum(hours.get(name, 0.0) for name in entry["names"])
        if amount:
            rows.append(f"| {entry['what']} | {amount:.1f} | {entry['voices']} | {entry['licence']} |")
    return "\n".join(rows)


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="folder that train.py wrote")
    parser.add_argument("--checkpoint", type=Path, required=True, help="Hugging Face folder of export.py")
    parser.add_argument("--parts", type=Path, required=True, help="folder with one sub-folder per part")
    parser.add_argument("--start", default="It began with random weights.", help="what the run began with")
    parser.add_argument("--out", type=Path, required=True, help="Markdown file to write")
    arguments = parser.parse_args(argv)
    checkpoint = load_checkpoint(arguments.checkpoint)
    network = load_network(checkpoint)
    results: dict[str, dict[str, Result]] = {}
    sizes = []
    forms: tuple[Weights, ...] = ("fp16", "int8", "int4")
    with tempfile.TemporaryDirectory() as temporary:
        for weights in forms:
            bundle = Path(temporary) / weights
            export_onnx(network, checkpoint.tokenizer, bundle, source="recipes/tiny", weights=weights)
            size = sum(path.stat().st_size for path in bundle.iterdir())
            sizes.append(f"{size / 1e6:.1f} MB in {weights}")
            latencies = LATENCIES if weights == "fp16" else QUANTISED_LATENCIES
            model = nemostream.load(str(bundle))
            parts = list(ENGLISH_PARTS)
            results[weights] = evaluate(model, arguments.parts, parts, list(latencies))
            if weights == "fp16":
                joined = evaluate(model, arguments.parts, parts, [ROW_LATENCY], joined=True)
    heads, rows = read_log(arguments.run / "log.jsonl")
    hours = heads[-1]["corpora"]
    assert isinstance(hours, dict)
    config = checkpoint.config
    card = TEMPLATE.read_text(encoding="utf-8").format(
        parameters=sum(parameter.numel() for parameter in network.parameters()) / 1e6,
        layers=config.num_layers,
        width=config.hidden_size,
        pieces=config.vocab_size,
        table=full_table(results["fp16"], joined),
        quantised=quantised_table(results),
        sizes=", ".join(sizes),
        start=arguments.start,
        seen=rows[-1]["hours"],
        steps=int(rows[-1]["step"]),
        cores=cores(heads),
        commands="\n".join(command(head) for head in heads),
        data=data_table(hours),
        total=sum(hours.values()),
        hash=hashlib.sha256((arguments.checkpoint / "model.safetensors").read_bytes()).hexdigest(),
    )
    arguments.out.write_text(card, encoding="utf-8")


def cores(heads: list[dict[str, object]]) -> str:
    """How many cores the last start used; a process has one thread."""
    count = heads[-1].get("processes", 1)
    return "one core" if count == 1 else f"{count} cores"


def command(head: dict[str, object]) -> str:
    """The command line of one start of a run, its folders by their names only."""
    arguments = head["arguments"]
    assert isinstance(arguments, list)
    short = [Path(word).name if word.startswith("/") else word for word in arguments]
    return f"{head['start']:6.1f} h: train.py {shlex.join(short)}"


if __name__ == "__main__":
    main()
