"""The table of verbs: methods, rows by name, and names of those with kernels."""

from torchsko.api.row import Row
from torchsko.api.verb_table import _Verbs as Verbs

ROWS: dict[str, Row] = {
    name: entry.row for name, entry in vars(Verbs).items() if hasattr(entry, "row")
}
"""Rows by name."""

FUSIBLE = frozenset(name for name, row in ROWS.items() if "" not in row.refuses)
"""Names of the verbs that have a kernel, at least for some of their options."""
