"""What would leave the Neural Engine, or waste it, as far as the program alone shows; no Mac is needed.

Where an operation runs is decided on the device, and a compute plan made there is the only proof. These rules
are what is known to go wrong: whole numbers run on the CPU; tensors have five dimensions at most, of fixed
sizes; and the last one is padded to `ALIGNMENT` bytes, also in an output that a host gets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from nemostream.export.coreml.package import Operation, Package, TensorType

MAX_RANK = 5
ALIGNMENT = 64  # bytes


@dataclass(frozen=True)
class Finding:
    """One finding: ``rule`` "integer island", "rank", "dynamic shape" or "unaligned", and a sentence."""

    rule: str
    message: str


def lint(package: Package) -> list[Finding]:
    """All findings of a program, in the order of the rules."""
    return [*_islands(package), *_ranks(package), *_dynamic(package), *_unaligned(package)]


def _islands(package: Package) -> Iterator[Finding]:
    """Integer operations that hang together; each group is one trip to the CPU and back."""
    groups: list[tuple[set[str], list[Operation]]] = []
    for operation in package.operations:
        integers = {value.name for value in (*operation.inputs, *operation.outputs) if value.is_integer}
        if not integers:
            continue
        members = [operation]
        for names, operations in [group for group in groups if group[0] & integers]:
            groups.remove((names, operations))
            integers |= names
            members = operations + members
        groups.append((integers, members))
    for _, operations in groups:
        kinds = Counter(operation.type for operation in operations)
        listed = ", ".join(f"{kind} {count}" if count > 1 else kind for kind, count in kinds.items())
        yield Finding("integer island", f"whole numbers run on the CPU: {listed}")


def _ranks(package: Package) -> Iterator[Finding]:
    for operation, value in _results(package):
        if len(value.shape) > MAX_RANK:
            yield Finding(
                "rank",
                f"{operation.type} {value.name} has {len(value.shape)} dimensions, {MAX_RANK} at most fit",
            )


def _dynamic(package: Package) -> Iterator[Finding]:
    for value in package.inputs:
        if None in value.shape:
            yield Finding("dynamic shape", f"input {value.name} is {_shape(value)}; fixed sizes are needed")
    count = sum(None in value.shape for _, value in _results(package))
    if count:
        yield Finding("dynamic shape", f"{count} results of operations have sizes that vary")


def _unaligned(package: Package) -> Iterator[Finding]:
    for value in package.outputs:
        if (padded := _padded(value)) is not None:
            yield Finding(
                "unaligned",
                f"output {value.name} {_shape(value)} may come with rows of {padded}: copy it by its strides",
            )
    values = [value for _, value in _results(package) if _padded(value) is not None]
    if values:
        used = sum(prod(size or 1 for size in value.shape) for value in values)
        taken = sum(prod(size or 1 for size in value.shape[:-1]) * (_padded(value) or 0) for value in values)
        yield Finding(
            "unaligned",
            f"{len(values)} results have a last dimension that is not a multiple of {ALIGNMENT} bytes; "
            f"together they take {taken / used:.1f} times their size",
        )


def _results(package: Package) -> Iterator[tuple[Operation, TensorType]]:
    for operation in package.operations:
        for value in operation.outputs:
            yield operation, value


def _padded(value: TensorType) -> int | None:
    """Values that a row takes if that is more than it has."""
    if value.is_integer or len(value.shape) < 2 or value.shape[-1] is None:
        return None
    size = 1 if value.dtype == "bool" else 2  # numbers are held as fp16, whatever the interface says
    unit = ALIGNMENT // size
    padded = -(-value.shape[-1] // unit) * unit
    return padded if padded != value.shape[-1] else None


def _shape(value: TensorType) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in value.shape) + "]"
