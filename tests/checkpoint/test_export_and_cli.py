"""`export`, `recgraph checkpoint`, and the numpy reader against the library's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from ckpt_harness import batches, build, start

from mx_rec import ops
from mx_rec.checkpoint import Manifest, Rows, TableFile, read_saved_table, write_saved_table
from mx_rec.checkpoint.crc32c import crc32c
from mx_rec.checkpoint.export import export_table
from mx_rec.checkpoint.manifest import Column
from mx_rec.checkpoint.saved_tables import SavedTable, read_saved_tables, verify_dense, write_blocks
from mx_rec.checkpoint.table_file import write_table_file
from mx_rec.checkpoint.versions import checkpoint_to_restore
from mx_rec.cli import main
from mx_rec.errors import CheckpointError
from mx_rec.saver.saver import save_incremental
from mx_rec.saver.sparse import export

tf1 = tf.compat.v1
MODES = [True, False]
mode_ids = ["grows", "fixed"]


@pytest.fixture
def recgraph(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run


def _content(model, session):
    keys = np.sort(session.run(model.table._query("export").keys))
    return keys, model.read(session, keys)


def _sorted(exported):
    keys, rows = np.load(exported.keys), np.load(exported.embeddings)
    order = np.argsort(keys)
    return keys[order], rows[order]


@pytest.mark.parametrize("dynamic", MODES, ids=mode_ids)
def test_export_writes_the_last_saved_state(tmp_path, dynamic):
    start(dynamic)
    model, other = build(dynamic), build(dynamic, name="other")
    saver = tf1.train.Saver()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        model.train(session, *batches(1))
        other.train(session, [1])
        save_incremental(saver, session, str(tmp_path / "model"), 1, delta=False)
        model.train(session, *batches(2, keys=90))
        prefix = save_incremental(saver, session, str(tmp_path / "model"), 2, delta=True)
        keys, rows = _content(model, session)
        model.train(session, [5000])
    exported = export()
    assert set(exported) == {"user", "other"}
    assert exported["user"].keys == f"{prefix}-export/user/keys.npy"
    for ours, theirs in zip(_sorted(exported["user"]), (keys, rows)):
        np.testing.assert_array_equal(ours, theirs)
    some = export([model.table, "no_such"], directory=str(tmp_path / "into"))
    assert list(some) == ["user"]
    np.testing.assert_array_equal(_sorted(some["user"])[1], rows)


def test_export_needs_a_save(tmp_path):
    code = "from mx_rec.saver.sparse import export\ntry: export()\nexcept EnvironmentError as e: print(e)"
    ended = subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True, text=True)
    assert "saved no checkpoint yet" in ended.stdout
    with pytest.raises(CheckpointError, match="no/such"):
        export(checkpoint="no/such")


def test_export_keeps_little_in_memory(tmp_path):
    keys = np.arange(40000)
    rows = np.ones([40000, 64], np.float32)
    table = write_saved_table(str(tmp_path / "m"), "t", keys, rows, file_number=0)
    tracemalloc.start()
    exported = export_table(table, str(tmp_path / "out"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert exported.size == 40000
    assert peak < rows.nbytes / 2
    np.testing.assert_array_equal(np.load(exported.embeddings), rows)


def test_a_failed_export_leaves_nothing(tmp_path):
    table = write_saved_table(str(tmp_path / "m"), "t", np.arange(5), np.ones([5, 2]), file_number=0)
    path = tmp_path / ("m" + table.files[0].suffix)
    raw = bytearray(path.read_bytes())
    raw[80] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=path.name):
        export_table(table, str(tmp_path / "out"))
    assert os.listdir(tmp_path / "out") == []


def test_recgraph_checkpoint(tmp_path, recgraph):
    start(True)
    model = build(True)
    saver = tf1.train.Saver()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        prefixes = []
        for i in range(3):
            model.train(session, *batches(i, keys=50 + 20 * i))
            prefixes.append(save_incremental(saver, session, str(tmp_path / "model"), i, delta=i > 0))
        content = model.table.export(session)
        dense = session.run(model.dense)
    code, out, _ = recgraph("checkpoint", "inspect", tmp_path)
    assert code == 0 and "delta of" in out and "LazyAdam" in out and prefixes[0] in out
    code, out, _ = recgraph("checkpoint", "inspect", prefixes[2], "--json")
    facts = json.loads(out)[prefixes[2]]["user"]
    assert (facts["keys"], facts["kind"], len(facts["files"]), facts["steps"]) == (len(content.keys), "delta", 3, 9)
    code, out, _ = recgraph("checkpoint", "verify", tmp_path)
    assert code == 0 and out.count("whole") == 3

    code, _, _ = recgraph("checkpoint", "export", prefixes[2], tmp_path / "arrays", "--tables", "user")
    assert code == 0
    order = np.argsort(np.load(tmp_path / "arrays/user/keys.npy"))
    np.testing.assert_array_equal(np.load(tmp_path / "arrays/user/embeddings.npy")[order], content.rows[:, :4])

    target = tmp_path / "merged" / "model"
    code, out, _ = recgraph("checkpoint", "merge", prefixes[2], target)
    assert code == 0 and f"{len(content.keys)} keys" in out
    start(True)
    with tf.Graph().as_default():
        again = build(True)
        with tf1.Session() as session:
            tf1.train.Saver().restore(session, str(target))
            for ours, theirs in zip(again.table.export(session), content):
                np.testing.assert_array_equal(ours, theirs)
            np.testing.assert_array_equal(session.run(again.dense), dense)
    code, _, err = recgraph("checkpoint", "merge", prefixes[2], target)
    assert code == 2 and "exists" in err

    name = read_saved_table(prefixes[1], "user").files[-1].suffix
    path = prefixes[1] + name
    with open(path, "r+b") as stream:
        stream.truncate(os.path.getsize(path) - 3)
    code, out, _ = recgraph("checkpoint", "verify", tmp_path)
    assert code == 1 and out.count("whole") == 1 and out.count(name) == 2
    code, _, err = recgraph("checkpoint", "verify", tmp_path / "none")
    assert code == 2 and len(err.splitlines()) == 1
    code, _, err = recgraph("checkpoint", "export", prefixes[0], tmp_path / "x", "--tables", "nobody")
    assert code == 2 and "it has 'user'" in err


def test_the_command_needs_no_library(tmp_path):
    write_saved_table(str(tmp_path / "m"), "t", np.arange(5), np.ones([5, 2]), file_number=0)
    code = (
        "import sys; from mx_rec.checkpoint import TableFile; import glob; "
        f"TableFile(glob.glob({str(tmp_path)!r} + '/m.data*')[0]).verify(); "
        "assert 'tensorflow' not in sys.modules and 'mx_rec.ops' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_checksums_are_crc32c():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    data = np.random.default_rng(0).bytes(100_003)
    table = [0] * 256
    for i in range(256):
        crc = i
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table[i] = crc
    register = 0xFFFFFFFF
    for byte in data:
        register = (register >> 8) ^ table[(register ^ byte) & 0xFF]
    assert crc32c(data) == register ^ 0xFFFFFFFF
    assert crc32c(data[70_000:], crc32c(data[:70_000])) == crc32c(data)


def test_every_flipped_bit_is_found(tmp_path):
    table = write_saved_table(str(tmp_path / "m"), "t", np.arange(3), np.ones([3, 2]), file_number=0)
    path = str(tmp_path / "m") + table.files[0].suffix
    with open(path, "rb") as stream:
        good = stream.read()
    for byte in range(len(good)):
        bad = bytearray(good)
        bad[byte] ^= 1 << byte % 8
        with open(path, "wb") as stream:
            stream.write(bad)
        with pytest.raises(CheckpointError, match=table.files[0].suffix):
            TableFile(path, table.files[0]).verify()


SAMPLES = os.path.join(os.path.dirname(__file__), "..", "data", "checkpoints")


@pytest.mark.parametrize("name", sorted(os.listdir(SAMPLES)) if os.path.isdir(SAMPLES) else ["none"])
def test_stored_samples_of_each_version_are_read_by_both_readers(name):
    """`tools/make_checkpoint_sample.py` has made them; they are never made again."""
    directory = os.path.join(SAMPLES, name)
    with open(os.path.join(directory, "expected.json")) as stream:
        expected = json.load(stream)
    prefix = os.path.join(directory, expected["prefix"])
    tables = read_saved_tables(prefix)
    assert set(tables) == set(expected["tables"])
    start(True)
    for table_name, facts in expected["tables"].items():
        table = tables[table_name]
        assert isinstance(table, SavedTable)
        table.verify()
        rows = {}
        for block in table.blocks():
            rows.update(zip(block.columns["keys"].tolist(), block.columns["rows"].tolist()))
        assert rows == {int(key): row for key, row in facts["rows"].items()}
        with tf.Graph().as_default():
            model = build(True, facts["optimizer"], name=table_name)
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                from test_saver import _restore_table

                _restore_table(session, model, prefix, table_name)
                content = model.table.export(session)
                np.testing.assert_array_equal(content.keys, sorted(rows))
                np.testing.assert_array_equal(content.rows, [rows[key] for key in sorted(rows)])
                assert model.table.memory().update_count == facts["updates"]


_ADMITTED = {
    "rows": (
        Column("keys", "int64"),
        Column("counts", "int64"),
        Column("times", "int64"),
        Column("rows", "float32", 2),
    ),
    "evicted": (Column("keys", "int64"),),
    "history": (Column("keys", "int64"), Column("counts", "int64"), Column("times", "int64")),
}


def _rows(keys, value):
    n = len(keys)
    return Rows(
        "rows",
        {
            "keys": np.array(keys),
            "counts": np.full(n, 7),
            "times": np.full(n, 9),
            "rows": np.full([n, 2], value, np.float32),
        },
    )


def _history(keys, counts):
    return Rows("history", {"keys": np.array(keys), "counts": np.array(counts), "times": np.full(len(keys), 9)})


def _chain_of(prefix, files):
    """A saved table of files with these blocks, a full one first."""
    saved = []
    for i, blocks in enumerate(files):
        notes = {"access_threshold": "3"}
        manifest = Manifest("t", 2, size=4, is_delta=i > 0, base=tuple(saved), columns=_ADMITTED, notes=notes)
        saved.append(write_table_file(prefix, 0, manifest, blocks))
    text = manifest.encode() + "".join(f"file={file.encode()}\n" for file in saved)
    return SavedTable.decode(prefix, "t", text)


@pytest.mark.parametrize("history_first", [True, False])
def test_both_readers_read_a_key_whose_history_stands_beside_its_row(tmp_path, history_first):
    """Blocks of a file are in no order of kinds: a key that was admitted has a row, and waits no longer."""
    newest = [_history([1, 2, 5], [-1, -1, 2]), _rows([1, 2], 30)]
    middle = [_history([3, 4], [-1, 1]), _rows([3], 20), Rows("evicted", {"keys": np.array([8])})]
    if not history_first:
        newest.reverse()
        middle.reverse()
    table = _chain_of(
        str(tmp_path / "m"), [[_rows([8, 9], 10), _history([1, 3, 4, 5, 6], [1, 1, 2, 1, 1])], middle, newest]
    )
    rows, waiting = {}, {}
    for block in table.blocks(history=True):
        into, column = (rows, "rows") if block.kind == "rows" else (waiting, "counts")
        for key, value in zip(block.columns["keys"].tolist(), block.columns[column].tolist()):
            assert key not in into
            into[key] = value
    assert rows == {1: [30, 30], 2: [30, 30], 3: [20, 20], 9: [10, 10]}
    assert waiting == {5: 2, 4: 1, 6: 1}
    assert export_table(table, str(tmp_path / "out")).size == 4

    handle = ops.table_handle("t", 2, record_counts=True, record_times=True, access_threshold=3)
    text = tf1.placeholder(tf.string, [])
    restore = ops.table_restore(handle, str(tmp_path / "m"), text, key_dtype="int64")
    content, history = ops.table_export(handle), ops.table_history(handle)
    full = write_blocks(str(tmp_path / "full"), 0, replace(table.manifest), table.blocks(history=True))
    merged = ops.table_restore(handle, str(tmp_path / "full"), text, key_dtype="int64")
    with tf1.Session() as session:
        for op, saved in ((restore, table), (merged, full)):
            session.run(op, {text: saved.text})
            found, counted = session.run([content, history])
            assert dict(zip(found.keys.tolist(), found.rows.tolist())) == rows
            known = zip(counted.keys.tolist(), counted.counts.tolist(), counted.has_row.tolist())
            assert {key: count for key, count, has_row in known if not has_row} == waiting


@pytest.mark.parametrize("what", ["truncated", "empty", "missing", "flipped", "index"])
def test_damage_of_what_tensorflow_keeps_is_found(tmp_path, recgraph, what):
    start(True)
    model, saver = build(True), tf1.train.Saver()
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        prefixes = []
        for step in (1, 2):
            model.train(session, [step])
            prefixes.append(saver.save(session, str(tmp_path / "model"), step))
    path = prefixes[1] + (".index" if what == "index" else ".data-00000-of-00001")
    with open(path, "rb") as stream:
        good = stream.read()
    bad = {"flipped": bytes([good[0] ^ 1]) + good[1:], "empty": b""}.get(what, good[: len(good) // 2])
    with open(path, "wb") as stream:
        stream.write(bad)
    if what == "missing":
        os.unlink(path)
    code, out, err = recgraph("checkpoint", "verify", tmp_path)
    assert (code, err) == (1, "")
    first, second = out.splitlines()
    assert first == f"{prefixes[0]}: whole"
    assert second.startswith(f"{prefixes[1]}: cannot read the checkpoint '{prefixes[1]}': ")
    if what == "flipped":
        assert "'dense_user'" in second and "hecksum" in second
    with pytest.raises(CheckpointError, match=f"the newest one that is whole is '{prefixes[0]}'"):
        checkpoint_to_restore(str(tmp_path))
    with pytest.raises(CheckpointError, match="cannot read the checkpoint"):
        verify_dense(prefixes[1])
