"""``nemostream serve``: the server."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

_DESCRIPTION = """\
Serve a model: many live calls at once, files, and a web page. Protocols: OpenAI's transcriptions and realtime
transcription, Deepgram's live messages, Twilio Media Streams, Wyoming. See docs/server.md.

Settings come from, the last wins: defaults, --config FILE (TOML), the environment
(NEMOSTREAM_SERVE_PORT=9000), flags.
"""


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "serve",
        help="serve many live calls",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings as TOML")
    parser.add_argument("-m", "--model", help="model; default: tiny")
    parser.add_argument("--backend", help="runtime; default: what fits the model")
    parser.add_argument("--precision", help="of the backend mlx: fp32 (default), fp16, bf16, int8 or int4")
    parser.add_argument("--decoder", help="of the backend mlx: mlx (default), or onnx for the CPU")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="threads that step calls; default: one a core"
    )
    parser.add_argument("--latency", type=int, metavar="MS", help="of calls that ask for none")
    parser.add_argument("-l", "--language", help="of calls that ask for none")
    parser.add_argument(
        "--vad", action="store_const", const=True, help="silero-vad says where a pause is (extra vad)"
    )
    parser.add_argument("--host", help="address; default: 127.0.0.1, this machine only")
    parser.add_argument("--port", type=int, help="default: 8000; 0 takes a free one and logs it")
    parser.add_argument("--slots", type=int, metavar="N", help="calls at once; default: measured at start")
    parser.add_argument("--max-batch", type=int, metavar="N", help="calls in one encoder step; default: 64")
    parser.add_argument("--api-keys-file", metavar="FILE", help="a key a line; clients must give one")
    parser.add_argument("--open", action="store_const", const=True, help="no keys, whatever the host")
    parser.add_argument("--wyoming-port", type=int, metavar="PORT", help="serve Home Assistant there")
    parser.add_argument("--ray", action="store_true", help="as Ray Serve replicas, see docs/deploy.md")
    parser.add_argument("--replicas", type=int, metavar="N", help="with --ray: the most; default: 1")
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from nemostream.checkpoints.files import optional_module

    for module in ("starlette", "uvicorn", "prometheus_client", "limits"):
        optional_module(module, "serve", "The server")
    from nemostream.serve.config import ServeConfig, read_config

    names = {field.name for field in fields(ServeConfig)}
    flags = {name: value for name, value in vars(arguments).items() if name in names}
    config = read_config(arguments.config, flags=flags)
    if arguments.replicas is not None and not arguments.ray:
        arguments.parser.error("--replicas needs --ray")
    if arguments.ray:
        optional_module("ray.serve", "ray", "Serving with Ray")
        from nemostream.serve.ray import run_replicas

        run_replicas(config, arguments.replicas or 1)
        return 0
    from nemostream.serve.run import run_server

    run_server(config)
    return 0
