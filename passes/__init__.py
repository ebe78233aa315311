"""Graph passes: each is one file with one class; `pipeline` holds their order.

Importing this package loads TensorFlow's Python but never the op library of this project.
"""

from __future__ import annotations

from mx_rec.passes.base import Pass, PassOutcome, Refusal
from mx_rec.passes.find_lookups import Lookup, find_lookups
from mx_rec.passes.manager import PassFailed, PassManager, PassReport, PipelineResult
from mx_rec.passes.pipeline import PASSES, PIPELINE, PipelineOptions, Stage, default_pipeline
from mx_rec.passes.report import report_json, report_text

__all__ = [
    "PASSES",
    "PIPELINE",
    "Lookup",
    "Pass",
    "PassFailed",
    "PassManager",
    "PassOutcome",
    "PassReport",
    "PipelineOptions",
    "PipelineResult",
    "Refusal",
    "Stage",
    "default_pipeline",
    "find_lookups",
    "report_json",
    "report_text",
]
