"""The contracts of CoreML bundles are those of the published ports: names, shapes, dtypes, at full size."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from nemostream.config import ModelConfig
from nemostream.runtimes.coreml_contract import (
    LAYOUTS,
    PROMPT_ID,
    WINDOW,
    WINDOW_LENGTH,
    Contract,
    Graph,
    Layout,
    SplitDecoder,
    Value,
    contract,
    shard_layers,
    valid_frames,
)
from nemostream.runtimes.torch import load_network
from tests.models import small_checkpoint, small_config

FULL = dataclasses.replace(
    small_config(),
    hidden_size=1024,
    num_layers=24,
    num_heads=8,
    intermediate_size=4096,
    subsampling_channels=256,
    predictor_hidden_size=640,
    joint_hidden_size=640,
    vocab_size=13087,
    prompt_intermediate_size=2048,
)
ENGLISH = dataclasses.replace(
    FULL,
    vocab_size=1024,
    att_context_sizes=((70, 6),),
    num_prompts=0,
    prompt_intermediate_size=0,
    prompts={},
    default_language=None,
)
SINGLE = contract(FULL, "single", (56, 13), 14)
TIER = contract(FULL, "sharded", (42, 13), 28)

Sides = tuple[dict[str, tuple[tuple[int, ...], str]], dict[str, tuple[tuple[int, ...], str]]]


def sides(graph: Graph) -> Sides:
    inputs, outputs = (
        {value.name: (value.shape, value.dtype) for value in values}
        for values in (graph.inputs, graph.outputs)
    )
    return inputs, outputs


def test_single_is_the_published_step() -> None:
    inputs, outputs = sides(SINGLE.graphs["encoder"])
    caches: dict[str, tuple[tuple[int, ...], str]] = {
        "cache_last_channel": ((24, 1, 56, 1024), "float16"),
        "cache_last_time": ((24, 1, 1024, 8), "float16"),
        "cache_last_channel_len": ((1,), "int32"),
    }
    assert inputs == {"processed_signal": ((1, 128, 121), "float32"), **caches}
    new = {f"new_{name}": value for name, value in caches.items()}
    assert outputs == {"encoded": ((1, 1024, 14), "float16"), **new}


def test_english_is_the_published_step_and_decoder() -> None:
    graphs = contract(ENGLISH, "english", (70, 6), 7).graphs
    inputs, outputs = sides(graphs["encoder"])
    assert inputs["audio_signal"] == ((1, 128, 65), "float32")
    for name, shape in (("channel", (1, 24, 70, 1024)), ("time", (1, 24, 1024, 8))):
        assert inputs[f"cache_last_{name}"] == (shape, "float32")
        assert outputs[f"cache_last_{name}_next"] == (shape, "float16")
    assert inputs["cache_last_channel_len"] == ((1,), "int32")
    assert outputs["outputs"] == ((1, 1024, 7), "float16")
    inputs, outputs = sides(graphs["decoder"])
    assert inputs["encoder_outputs"] == ((1, 1024, 1), "float32")
    assert outputs["outputs"][0] == (1, 1, 1, 1025)
    for number in "12":
        assert inputs[f"input_states_{number}"] == ((2, 1, 640), "float32")
        assert outputs[f"output_states_{number}"] == ((2, 1, 640), "float16")


@pytest.mark.parametrize(("tier", "frames"), [(560, 7), (1120, 14), (2240, 28), (4480, 56)])
def test_tiers(tier: int, frames: int) -> None:
    made = contract(FULL, "sharded", (42, 13), frames)
    assert (made.chunk_mel_frames, made.window_mel_frames) == (tier // 10, tier // 10 + 9)
    assert made.graphs["preprocessor"].inputs[0] == Value("audio", (1, tier * 16))
    assert made.graphs["encoder_pre_encode"].inputs[0] == Value("mel", (1, 128, tier // 10 + 9))
    assert made.graphs["encoder_shard_3"].outputs[0] == Value("encoded", (1, 1024, frames))


def test_watch_lacks_the_two_large_parts() -> None:
    watch = contract(FULL, "watch", (42, 13), 28)
    assert set(TIER.graphs) - set(watch.graphs) == {"joint_noencproj_batched"}
    assert all(watch.graphs[name] == TIER.graphs[name] for name in watch.graphs)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", [FULL, ENGLISH, small_config()])
def test_every_input_has_a_source_of_its_shape(layout: Layout, config: ModelConfig) -> None:
    """A call can be run from the contract alone: nothing is unbound, and state fits where it goes."""
    made = contract(config, layout, (42, 13), 14)
    known: dict[str, tuple[tuple[int, ...], str]] = {
        WINDOW: ((1, 128, 121), "float32"),
        WINDOW_LENGTH: ((1,), "int32"),
    }
    if config.has_prompt:
        known[PROMPT_ID] = ((1,), "int32")
    for name in made.encoder:
        graph = made.graphs[name]
        inputs, outputs = sides(graph)
        assert set(graph.takes) | set(graph.state) == set(inputs)
        assert not set(graph.takes) & set(graph.state)
        for value, source in graph.takes.items():
            assert known[source] == inputs[value]
        for value, source in graph.state.items():
            assert outputs[source][0] == inputs[value][0]
        known |= {f"{name}.{output}": spec for output, spec in outputs.items()}
    assert known[made.encoded][0] == (1, config.hidden_size, 14)
    assert made.valid is None or known[made.valid] == ((1,), "int32")
    assert decoder_graphs(made) <= set(made.graphs)
    assert all(graph.name == name for name, graph in made.graphs.items())


def decoder_graphs(made: Contract) -> set[str]:
    decoder = made.decoder
    if isinstance(decoder, SplitDecoder):
        return {decoder.predictor, decoder.joint} | ({decoder.projection} - {None})  # type: ignore[return-value]
    inputs, outputs = sides(made.graphs[decoder.graph])
    assert {decoder.frame, decoder.token, decoder.length, *decoder.state} == set(inputs)
    assert {*decoder.new_state, decoder.logits or decoder.best} <= set(outputs)
    return {decoder.graph}


@pytest.mark.parametrize("layers", [4, 6, 7, 24, 25])
def test_shards_cover_the_layers_in_order(layers: int) -> None:
    shards = shard_layers(layers)
    assert [layer for shard in shards for layer in shard] == list(range(layers))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert [len(shard) for shard in shard_layers(24)] == [6, 6, 6, 6]


@pytest.mark.parametrize("length", range(9, 66))
def test_valid_frames_are_those_of_the_stem(length: int) -> None:
    torch = pytest.importorskip("torch")
    from nemostream.model.uniform import uniform_stem

    encoder = load_network(small_checkpoint(small_config())).encoder
    _, frames = uniform_stem(
        encoder.subsampling, torch.zeros(1, 65, 128), torch.tensor([length]), encoder.config
    )
    assert int(frames) == valid_frames(length)


# -- the tables themselves, where the developers' folder is there --


def value(text: str) -> tuple[list[str], tuple[int | str, ...] | None, str | None]:
    """Names, shape and dtype of an entry such as ``h_in / c_in fp32 [2, 1, 640] (a remark)``."""
    names, dtype, shape = re.fullmatch(
        r"([\w /]+?)(?: (fp32|int32))?(?: \[([^]]*)\])?(?: \(.*\))?", text
    ).groups()  # type: ignore[union-attr]
    dims = None
    if shape is not None:
        dims = tuple(int(part) if part.isdecimal() else part for part in shape.split(", "))
    return names.split(" / "), dims, {"fp32": "float32", "int32": "int32", None: None}[dtype]


def entries(cell: str) -> list[str]:
    return re.split(r", (?![^[]*\])(?![^(]*\))| or ", cell)


def test_the_table_of_the_sharded_layout(shared_dir: Path) -> None:
    text = seed(shared_dir, "002").partition("Runtime contract (CoreML)")[2].partition("•")[0]
    table = re.findall(r"^(\w+)(?: \(k[^\t]*)?\t([^\t\n]* \[[^\t]*)\t(.*)$", text, re.MULTILINE)
    assert [name for name, _, _ in table] == [
        "preprocessor",
        "encoder_pre_encode",
        "encoder_shard_k",
        "decoder_joint_argmax",
        "decoder",
        "joint_noencproj_batched",
    ]
    sizes = {"N": 35840, "frames": 224, "total_mel_frames": 233, "T": 28}
    for name, *cells in table:
        numbers = range(4) if name.endswith("_k") else [None]
        for number in numbers:
            graph = TIER.graphs[name if number is None else f"{name[:-1]}{number}"]
            for ours, cell in zip((graph.inputs, graph.outputs), cells, strict=True):
                theirs = [value(entry) for entry in entries(cell)]
                absent = "hidden_out" if number == 3 else "encoded"
                if number is not None:
                    theirs = [entry for entry in theirs if entry[0] != [absent]]
                assert [each.name for each in ours] == [each for names, _, _ in theirs for each in names]
                expected = {each: (shape, dtype) for names, shape, dtype in theirs for each in names}
                for each in ours:
                    shape, dtype = expected[each.name]
                    if shape is not None:
                        assert each.shape == tuple(sizes.get(str(size), size) for size in shape)
                    assert dtype in (None, each.dtype)


def test_the_description_of_the_single_layout(shared_dir: Path) -> None:
    text = seed(shared_dir, "000")
    described = dict(re.findall(r"([a-z_]+) \[([\d, ]+)\]", text))
    ours = {v.name: v.shape for g in SINGLE.graphs.values() for v in (*g.inputs, *g.outputs)}
    for name in (
        "processed_signal",
        "cache_last_channel",
        "cache_last_time",
        "cache_last_channel_len",
        "encoded",
    ):
        assert ours[name] == tuple(int(size) for size in described[name].split(","))


def test_the_table_of_the_english_layout(shared_dir: Path) -> None:
    text = seed(shared_dir, "001")
    graphs = contract(ENGLISH, "english", (70, 6), 7).graphs
    inputs = sides(graphs["encoder"])[0] | sides(graphs["decoder"])[0]
    rows = re.findall(r"^(\w+(?:/2)?)(?: shape)?\n\[([\d, ]+)\] (FP32|int32)", text, re.MULTILINE)
    assert len(rows) == 4
    for name, shape, dtype in rows:
        expected = tuple(map(int, shape.split(", "))), {"FP32": "float32", "int32": "int32"}[dtype]
        for each in (name,) if "/" not in name else (name[:-2], f"{name[:-3]}2"):
            assert inputs[each] == expected


def seed(shared_dir: Path, number: str) -> str:
    return next((shared_dir / "seeds").glob(f"{number}_*.txt")).read_text()
