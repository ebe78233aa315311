"""Who may import whom; see docs/architecture.md."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
# Modules of mx_rec/graph that belong to the front, not to the IR.
FRONT_IN_GRAPH = {"acg_push_ops", "modifier", "hooks", "merge_lookup", "slicing"}
LEAVES = {"mx_rec.errors", "mx_rec.constants", "mx_rec.constants.constants", "mx_rec.saved_parts", "mx_rec.tf_compat"}


def _modules():
    """(module name, path) of every Python file of the package."""
    for path in sorted((ROOT / "mx_rec").rglob("*.py")) + sorted((ROOT / "passes").rglob("*.py")):
        relative = path.relative_to(ROOT).with_suffix("")
        parts = [part for part in relative.parts if part != "__init__"]
        if parts[0] == "passes":
            parts.insert(0, "mx_rec")
        yield ".".join(parts), path


def _imports(path, *, top_level_only=False):
    """Names of the modules that a file imports, `from x import y` as both x and x.y."""
    tree = ast.parse(path.read_text())
    guarded = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    nodes = tree.body if top_level_only else ast.walk(tree)
    for node in nodes:
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _layer(module):
    """errors < graph < passes < front; ops stands beside graph and passes."""
    if module in LEAVES:
        return "leaf"
    parts = module.split(".")
    if parts[:2] == ["mx_rec", "passes"]:
        return "passes"
    if parts[:2] == ["mx_rec", "ops"]:
        return "ops"
    if parts[:2] == ["mx_rec", "graph"] and (len(parts) < 3 or parts[2] not in FRONT_IN_GRAPH):
        return "graph"
    return "front"


MAY_IMPORT = {
    "leaf": {"leaf"},
    "graph": {"leaf", "graph"},
    "passes": {"leaf", "graph", "passes"},
    "ops": {"leaf", "ops"},
    "front": {"leaf", "graph", "passes", "ops", "front"},
}


@pytest.mark.parametrize(("module", "path"), _modules(), ids=lambda value: str(value))
def test_layers(module, path):
    layer = _layer(module)
    names = {name for _, name in ((None, n) for n in _imports(path))}
    known = {name for name, _ in _modules()}
    wrong = {name for name in names & known if name != "mx_rec" and _layer(name) not in MAY_IMPORT[layer]}
    assert not wrong, f"{module} ({layer}) must not import {sorted(wrong)}"


def test_only_the_ir_touches_protobufs():
    allowed = {"graph", "leaf"}
    for module, path in _modules():
        touches = [name for name in _imports(path) if name.endswith("_pb2") or name.startswith("google.protobuf")]
        assert not touches or _layer(module) in allowed, f"{module} imports {touches}"


def test_private_tensorflow_is_in_one_place():
    """What differs between TensorFlow versions is reached through mx_rec.tf_compat."""
    allowed = {"mx_rec.tf_compat", "mx_rec.ops.library"}
    for module, path in _modules():
        private = [name for name in _imports(path) if name.startswith("tensorflow.python")]
        assert not private or module in allowed, f"{module} imports {private}"


def test_estimator_is_imported_by_no_other_module():
    uses = re.compile(r"\b(tf|tf1|tf\.compat\.v1)\.estimator\.\w+[.(]")
    for module, path in _modules():
        if module.startswith("mx_rec.estimator"):
            continue
        wrong = [name for name in _imports(path) if name.startswith(("mx_rec.estimator", "tensorflow_estimator"))]
        assert not wrong, f"{module} imports {wrong}"
        assert not uses.search(path.read_text()), module


def test_estimator_is_imported_when_it_is_asked_for(tmp_path):
    code = "import sys, mx_rec.estimator; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_core_includes_no_tensorflow():
    for path in (ROOT / "kernels" / "core").rglob("*"):
        if path.suffix in (".h", ".cc", ".inc"):
            includes = re.findall(r'#include\s+[<"]([^>"]+)', path.read_text())
            wrong = [name for name in includes if name.startswith(("tensorflow/", "absl/", "Eigen"))]
            assert not wrong, f"{path} includes {wrong}"


@pytest.mark.parametrize("module", ["mx_rec", "mx_rec.graph", "mx_rec.passes", "mx_rec.cli"])
def test_importing_does_not_load_the_library(module, tmp_path):
    code = (
        f"import sys, {module}; "
        "assert not [m for m in sys.modules if m.startswith('mx_rec.ops')], 'mx_rec.ops was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_importing_the_package_does_not_import_tensorflow(tmp_path):
    code = "import sys, mx_rec; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
