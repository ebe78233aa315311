"""Prints what pyproject.toml asks for (run time, development and Estimator), TensorFlow excepted, for pip."""

import pathlib
import re

text = (pathlib.Path(__file__).parent.parent / "pyproject.toml").read_text()
# A new venv of Python 3.9 has no TOML reader; the lists are plain strings.
lists = re.findall(r"^(?:dependencies|dev|estimator) = \[\n(.*?)^\]", text, re.S | re.M)
names = [name for block in lists for name in re.findall(r'"([^"]+)"', block)]
print(" ".join(name for name in names if not name.startswith("tensorflow-cpu")))
