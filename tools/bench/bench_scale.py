"""Time and memory of `recgraph` on large files: each command in a process of its own.

A file holds a small training graph whose lookups are all moved, and constants of 50 MB each, or a single one. `diff`
reads the file and its rewritten form. Peak memory is that of the whole process, with 0.4 GB for TensorFlow itself.

    bench_scale.py [--megabytes 0,475,950,1900] [--commands rewrite,inspect,diff,plot] [--kinds pb,meta,pb-one]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from harness import environment

MEGABYTE = 1_000_000
CONSTANT_MEGABYTES = 50
TESTS = Path(__file__).resolve().parent.parent.parent / "tests"


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def constant_head(name: str, content: int) -> bytes:
    """The bytes of a Const node up to the content of its value, a float32 tensor; as a field of a GraphDef."""
    shape = field(2, field(2, b"\x08" + varint(content // 4)))
    dtype = field(5, field(1, b"dtype") + field(2, b"\x30\x01"))
    content_head = varint(4 << 3 | 2) + varint(content)
    tensor = b"\x08\x01" + shape + content_head
    value = varint(8 << 3 | 2) + varint(len(tensor) + content) + tensor
    entry = field(1, b"value") + varint(2 << 3 | 2) + varint(len(value) + content) + value
    node = (
        field(1, name.encode()) + field(2, b"Const") + dtype + varint(5 << 3 | 2) + varint(len(entry) + content) + entry
    )
    return varint(1 << 3 | 2) + varint(len(node) + content) + node


def write_file(path: Path, small: bytes, size: int, constant: int, *, is_meta: bool) -> None:
    sizes = [constant] * (size // constant) + [size % constant // 4 * 4] * (size % constant > 0)
    heads = [constant_head(f"big_{index}", size) for index, size in enumerate(sizes)]
    total = len(small) + sum(map(len, heads)) + sum(sizes)
    with path.open("wb") as stream:
        if is_meta:
            stream.write(field(1, field(5, b"2.15.1")) + varint(2 << 3 | 2) + varint(total))
        stream.write(small)
        for index, (head, size) in enumerate(zip(heads, sizes)):
            stream.write(head)
            for start in range(0, size, MEGABYTE):  # in pieces: a child begins with its parent's peak
                count = min(MEGABYTE, size - start) // 4
                stream.write(np.random.default_rng((index, start)).random(count, np.float32).tobytes())


def run(arguments: list[str]) -> tuple[int, float, int]:
    """Exit code, seconds of CPU (which other work on the machine disturbs least), peak memory in bytes."""
    child = subprocess.Popen([sys.executable, "-m", "mx_rec.cli", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def small_graph() -> bytes:
    sys.path.insert(0, str(TESTS / "passes"))
    from lookup_graphs import big_graph

    return big_graph(300, 20).SerializeToString()


def measure(kind: str, megabytes: int, commands: list[str], directory: str | None, base: dict[str, float]) -> None:
    """Prints a row for each command, as soon as it has run."""
    suffix, _, one = kind.partition("-")
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        source, target = Path(folder) / f"in.{suffix}", Path(folder) / f"out.{suffix}"
        constant = max(megabytes, 1) if one else CONSTANT_MEGABYTES
        write_file(source, small_graph(), megabytes * MEGABYTE, constant * MEGABYTE, is_meta=suffix == "meta")
        size = source.stat().st_size
        outputs = {"rewrite": [target], "diff": [target], "plot": [Path(folder) / "out.svg"]}
        for command in commands:
            code, seconds, peak = run([command, str(source), *map(str, outputs.get(command, []))])
            assert code == (1 if command == "diff" else 0), (command, code)
            empty = base.setdefault(command, seconds)
            per_gb = f"{(seconds - empty) / size * 1e9:.1f}" if megabytes else ""
            times = f"{peak / size:.2f}" if megabytes else ""
            cells = [kind, f"{size / 1e6:,.0f}", command, f"{seconds:.1f}", per_gb, f"{peak / 1e6:,.0f}", times]
            print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", default="0,475,950,1900")
    parser.add_argument("--commands", default="rewrite,inspect,diff,plot")
    parser.add_argument("--kinds", default="pb,meta,pb-one", help="-one: a single constant takes all")
    parser.add_argument("--directory", help="for the files, which take twice the largest size")
    args = parser.parse_args()
    print(environment() + "\n")
    print("| file | MB | command | CPU s | s/GB beyond the empty file | peak memory, MB | of the file |")
    print("|---|---|---|---|---|---|---|")
    for kind in args.kinds.split(","):
        base: dict[str, float] = {}
        for megabytes in map(int, args.megabytes.split(",")):
            measure(kind, megabytes, args.commands.split(","), args.directory, base)


if __name__ == "__main__":
    main()
