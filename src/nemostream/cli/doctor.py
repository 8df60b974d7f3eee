"""``nemostream doctor``: what is installed, and whether every runtime on this machine recognises speech."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import platform
import re
import sys
import time
from importlib.metadata import requires
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import nemostream
from nemostream.cli.messages import report_exception

EXIT_FAILED = 1
LEAST_AGREEMENT = 0.8  # with what the model hears in the clip: processors round differently

_CORE = ("numpy", "onnxruntime", "soundfile", "soxr", "rich")
_NOT_FOR_USERS = ("dev", "bench")  # extras
_RUNTIMES = {"onnx": "onnxruntime", "torch": "torch", "mlx": "mlx"}  # backend -> module
_CPU_FLAGS = (
    "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "fphp", "i8mm", "bf16", "sve",
)  # fmt: skip


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "doctor",
        help="check this installation",
        description="Show versions and the machine, and transcribe a clip with every installed runtime.",
        parents=[common],
    )
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the report; return 0, or 1 if something that is installed does not work."""
    print(f"nemostream {nemostream.__version__}")
    print(f"python     {platform.python_version()} on {platform.platform()}")
    print(f"processor  {_processor()}")
    print(f"threads    {_usable_cores()} usable of {os.cpu_count()}")
    failed = not _check_packages(arguments.verbose)
    for backend, module in _RUNTIMES.items():
        if find_spec(module) is None:
            print(f"run {backend:6} not installed")
        elif not _check_runtime(backend, module, arguments.verbose):
            failed = True
    print("something is wrong, see above" if failed else "all is well")
    return EXIT_FAILED if failed else 0


def _check_packages(verbose: bool) -> bool:
    """Print the versions of all packages; the core ones have to be importable."""
    good = True
    for name in _CORE:
        try:
            importlib.import_module(name)
            print(f"core       {name} {_version(name)}")
        except Exception as error:  # a broken installation raises anything
            print(f"core       {name} FAILS")
            report_exception(error, verbose, about=name)
            good = False
    for extra, names in _extras().items():
        found = [f"{name} {_version(name) or 'missing'}" for name in names]
        print(f"extra      {extra}: {', '.join(found)}")
    return good


def _extras() -> dict[str, list[str]]:
    """Packages of every extra, from what the installed package says that it requires."""
    extras: dict[str, list[str]] = {}
    for requirement in requires("nemostream") or []:
        name = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if name is None or extra is None or extra[1] in _NOT_FOR_USERS:
            continue
        packages = extras.setdefault(extra[1], [])
        if name[0] not in (*packages, "nemostream"):
            packages.append(name[0])
    return {extra: packages for extra, packages in extras.items() if packages}


def _check_runtime(backend: str, module: str, verbose: bool) -> bool:
    """Transcribe the clip that is in the package, and compare with what the model hears in it."""
    assets = Path(str(files("nemostream") / "assets"))
    clip, expected = assets / "clip.flac", assets / "clip.txt"
    try:
        importlib.import_module(module)
        started = time.perf_counter()
        model = nemostream.load("tiny", backend=backend)
        transcript = model.transcribe(clip)
        seconds = time.perf_counter() - started
        reference = expected.read_text(encoding="utf-8")
    except Exception as error:  # whatever a broken runtime raises is what is looked for
        print(f"run {backend:6} FAILS")
        report_exception(error, verbose, about=backend)
        return False
    agreement = words_in_common(reference, transcript.text)
    good = agreement >= LEAST_AGREEMENT
    verdict = "works" if good else "FAILS"
    print(
        f"run {backend:6} {verdict}: {transcript.duration:.1f} s of audio in {seconds:.2f} s with loading, "
        f"{agreement:.0%} of the words as expected: {transcript.text!r}"
    )
    return good


def words_in_common(reference: str, recognized: str) -> float:
    """Return how much two texts agree in their words and their order, 0 to 1, case and punctuation aside."""
    return difflib.SequenceMatcher(None, _words(reference), _words(recognized), autojunk=False).ratio()


def _words(text: str) -> list[str]:
    kept = (character if character.isalnum() or character == "'" else " " for character in text.lower())
    return "".join(kept).split()


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _usable_cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    """Return the processor's name and, on Linux, the instruction sets that matter for speed."""
    name, flags = platform.processor() or platform.machine(), ""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags = value
                break
    except OSError:
        pass
    present = [flag for flag in _CPU_FLAGS if flag in flags.split()]
    return f"{name} ({', '.join(present)})" if present else name
