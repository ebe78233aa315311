"""Time and memory of `recgraph` on large files: each command in a process of its own.

A file of B megabytes holds a small training graph whose lookups are all moved, and constants of 50 MB each; its
commands are `rewrite`, `inspect`, `diff` (of the file and its rewritten form) and `plot`. Peak memory is that of the
process, beside that of the same command on the graph without constants (TensorFlow itself).

    bench_scale.py [--megabytes 0,475,950,1900] [--commands rewrite,inspect,diff,plot] [--kinds pb,meta] [--directory DIR]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from harness import environment

CONSTANT_BYTES = 50_000_000
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


def write_file(path: Path, small: bytes, megabytes: int, *, is_meta: bool) -> None:
    """Writes it piece by piece, so that this process stays small."""
    count = megabytes * 1_000_000 // CONSTANT_BYTES
    sizes = [CONSTANT_BYTES] * count
    left = megabytes * 1_000_000 - count * CONSTANT_BYTES
    sizes += [left // 4 * 4] if left else []
    heads = [constant_head(f"big_{index}", size) for index, size in enumerate(sizes)]
    total = len(small) + sum(map(len, heads)) + sum(sizes)
    with path.open("wb") as stream:
        if is_meta:
            stream.write(field(1, field(5, b"2.15.1")) + varint(2 << 3 | 2) + varint(total))
        stream.write(small)
        for index, (head, size) in enumerate(zip(heads, sizes)):
            stream.write(head)
            stream.write(np.random.default_rng(index).random(size // 4, np.float32).tobytes())


def run(arguments: list[str]) -> tuple[int, float, int]:
    """Exit code, seconds, peak memory in bytes."""
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "mx_rec.cli", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode, time.perf_counter() - start, usage.ru_maxrss * 1024


def small_graph() -> bytes:
    sys.path.insert(0, str(TESTS / "passes"))
    from lookup_graphs import big_graph

    return big_graph(300, 20).SerializeToString()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", default="0,475,950,1900")
    parser.add_argument("--commands", default="rewrite,inspect,diff,plot")
    parser.add_argument("--kinds", default="pb,meta")
    parser.add_argument("--directory", help="for the files, which take three times the largest size")
    args = parser.parse_args()
    print(environment() + "\n")
    print("| file | size, MB | command | s | s/GB | peak memory, MB | above that of the empty file, of its size |")
    print("|---|---|---|---|---|---|---|")
    small = small_graph()
    base: dict[str, tuple[float, int]] = {}
    for kind in args.kinds.split(","):
        for megabytes in map(int, args.megabytes.split(",")):
            with tempfile.TemporaryDirectory(dir=args.directory) as directory:
                source, target = Path(directory) / f"in.{kind}", Path(directory) / f"out.{kind}"
                write_file(source, small, megabytes, is_meta=kind == "meta")
                size = source.stat().st_size
                for command in args.commands.split(","):
                    out = {"rewrite": [target], "diff": [target], "plot": [Path(directory) / "out.svg"]}.get(
                        command, []
                    )
                    code, seconds, peak = run([command, str(source), *map(str, out)])
                    assert code == (1 if command == "diff" else 0), (command, code)
                    first_seconds, first_peak = base.setdefault(command, (seconds, peak))
                    per_gb = f"{(seconds - first_seconds) / size * 1e9:.2f}" if megabytes else ""
                    above = f"{(peak - first_peak) / size:.2f}" if megabytes else ""
                    cells = [kind, f"{size / 1e6:,.0f}", command, f"{seconds:.2f}", per_gb, f"{peak / 1e6:,.0f}", above]
                    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
