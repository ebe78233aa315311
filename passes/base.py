"""What a pass is: it looks at a view and says what to change, what it noticed and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from mx_rec.graph.edits import EditSet
from mx_rec.graph.view import GraphView


@dataclass(frozen=True)
class Refusal:
    """Something a pass leaves as it is, and why.

    Attributes:
        node: the node that stands in the way.
        reason: what about it, and what to do.
        is_pattern: whether `node` is no node but a name or pattern among the options, which nothing in the graph has.
    """

    node: str
    reason: str
    is_pattern: bool = False

    def __str__(self) -> str:
        return f"{self.node}: {self.reason}"


@dataclass(frozen=True)
class PassOutcome:
    """The answer of a pass.

    Attributes:
        edits: what to change; empty exactly when the pass changes nothing.
        notes: facts for the report, a line each.
        refusals: what was left as it is.
    """

    edits: EditSet = field(default_factory=EditSet)
    notes: Sequence[str] = ()
    refusals: Sequence[Refusal] = ()


@dataclass(frozen=True)
class Pass:
    """Base class of passes. The fields of a subclass are its options.

    A pass keeps no state, never writes to the graph and is idempotent: run on its own result it returns no
    edits.
    """

    name: ClassVar[str]

    def run(self, view: GraphView) -> PassOutcome:
        """Look at the graph and say what to change.

        Raises:
            GraphRewriteError: the graph contradicts what the pass relies on.
        """
        raise NotImplementedError
