"""op_impl_mode.ini."""

from __future__ import annotations

from pathlib import Path

import pytest

from mx_rec.errors import GraphFileError
from mx_rec.graph.op_impl_mode import read_op_impl_mode


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_reads_modes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.ini", "# modes\n\nGatherV2=high_performance\n MatMul = high_precision # why\n")
    assert read_op_impl_mode(path) == {"GatherV2": "high_performance", "MatMul": "high_precision"}
    assert read_op_impl_mode(write(tmp_path / "b.ini", "")) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("GatherV2", r"a\.ini:1: expected OpType=mode, got 'GatherV2'"),
        ("\n=high_performance", r"a\.ini:2: expected OpType=mode"),
        ("Gather V2=high_performance", r"a\.ini:1: expected OpType=mode"),
        (
            "# x\nGatherV2=fast",
            r"a\.ini:2: mode of GatherV2 is 'fast'; expected one of high_performance, high_prec",
        ),
        (
            "A=high_performance\nA=high_precision",
            r"a\.ini:2: A is 'high_performance' above and 'high_precision' here",
        ),
    ],
)
def test_names_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(GraphFileError, match=message):
        read_op_impl_mode(write(tmp_path / "a.ini", text))


def test_missing_file_and_bad_encoding(tmp_path: Path) -> None:
    with pytest.raises(GraphFileError, match=r"nowhere\.ini: cannot be read"):
        read_op_impl_mode(tmp_path / "nowhere.ini")
    (tmp_path / "binary.ini").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(GraphFileError, match=r"binary\.ini: cannot be read"):
        read_op_impl_mode(tmp_path / "binary.ini")
