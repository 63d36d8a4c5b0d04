"""The table of results: paper, lemma or algorithm, function, test. Written from docstrings, never by hand.

A public function cites what it implements at the end of its docstring:

    Reference: Jain 2011, Part II, Lemma 3; Jain 2024, SOA slides 9, trace.

that is author and year, short title, result; several separated by semicolons. Its test is one that
calls the function by name, or else one that reaches it through its callers: in the test file of its
module if there is one, and named after the result if any is.

    python benchmarks/paper_table.py                      # print the table
    python benchmarks/paper_table.py --update README.md   # replace it between its markers
    python benchmarks/paper_table.py --check README.md    # fail if it is out of date or a test is missing
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- papers:begin -->", "<!-- papers:end -->"
CITATION = re.compile(
    r"^(?P<who>[A-Z][\w\- ]+? (?:\d{4}|\(undated\))),? (?P<title>[^,]+), (?P<result>.+)$"
)
# Tests that call a function to see something other than whether its values are right.
ELSEWHERE = re.compile(
    r"refused|missing|vmap|compile|derivative|unbatched|float32|operations|without"
)
PAPERS = {
    "Jain 2011, Part II": "Graph Theoretic Foundations of Multibody Dynamics, Part II",
    "Jain 2011, Transformations Part I": "Multibody graph transformations and analysis, Part I",
    "Jain 2024, SOA slides 9": "Spatial Operator Algebra 9: Multibody Graph Generalizations",
    "Concurrent Dynamics 2018, Generalized Mass Matrix": "Generalized Mass Matrix of MBS",
    "Isobe and Yagi (undated), General-purpose expression": "General-Purpose Expression of Structural "
    "Connectivity in the Parallel Solution Scheme of Inverse Dynamics",
    "Sarkka and Garcia-Fernandez 2021, Temporal parallelization": "Temporal parallelization of "
    "Bayesian smoothers",
}


@dataclass(frozen=True)
class Result:
    """One result of a paper, and where it lives.

    Attributes:
        paper: author, year and short title.
        result: as the paper numbers it.
        function: module-qualified name, without "torchsko.".
        test: "path::name" of a test that calls it; None when there is none.
    """

    paper: str
    result: str
    function: str
    test: str | None

    @property
    def row(self) -> str:
        """The result as a line of a markdown table."""
        path, _, name = (self.test or "").partition("::")
        test = f"[`{name}`]({path})" if self.test else "none"
        return f"| {self.result} | `{self.function}` | {test} |"


def public_functions(package: Path) -> Iterator[tuple[str, str, str]]:
    """Module, qualified name and docstring of every public function, method and class."""
    for path in sorted(package.rglob("*.py")):
        for name, node in named(ast.parse(path.read_text())):
            doc = ast.get_docstring(node)
            if doc and not any(part.startswith("_") for part in name.split(".")):
                yield module_name(package, path), name, doc


def package_bodies(package: Path) -> dict[tuple[str, str], set[str]]:
    """Names that each function uses, itself or through a table of its module such as METHODS."""
    bodies = {}
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text())
        tables = {
            name: used_names(n)
            for n in tree.body
            if isinstance(n, ast.Assign)
            for name in map(ast.unparse, n.targets)
        }
        for name, node in named(tree):
            names = used_names(node)
            names = names.union(*(tables.get(n, set()) for n in names))
            bodies[module_name(package, path), name] = names
    return bodies


def module_name(package: Path, path: Path) -> str:
    """Dotted name of a file below the package."""
    return ".".join(path.relative_to(package).with_suffix("").parts)


def named(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef]]:
    """Functions and classes in a module or a class, by qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield prefix + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from named(child, f"{prefix}{child.name}.")


def citations(doc: str) -> Iterator[tuple[str, str]]:
    """Paper and result of everything that a docstring cites in the short form."""
    for paragraph in re.findall(
        r"Reference: (.+?)(?=\n\s*\n|\nDEPARTS|\nExample:|\Z)", doc, re.DOTALL
    ):
        for part in " ".join(paragraph.split()).rstrip(".").split("; "):
            if match := CITATION.match(part):
                yield f"{match['who']}, {match['title']}", match["result"]


def tests_by_name(folder: Path) -> dict[str, set[str]]:
    """The names (see `used_names`) that each test, "path::name", uses, itself or through a helper."""
    uses: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        bodies = {name: used_names(node) for name, node in named(tree)}
        # What stands outside functions (parametrisations, tables of cases) serves every test.
        shared = set().union(*(used_names(n) for n in tree.body if isinstance(n, ast.Assign)))
        for test in (name for name in bodies if name.startswith("test_")):
            helped = set().union(bodies[test], *(bodies.get(n, set()) for n in bodies[test]))
            uses[f"{path.relative_to(folder.parent)}::{test}"] = helped | shared
    return uses


def used_names(node: ast.AST) -> set[str]:
    """Names below a node: `f` as "f"; `a.b.f` as "b.f" and ".f"."""
    found = set()
    for n in ast.walk(node):
        if isinstance(n, ast.Name):
            found.add(n.id)
        elif isinstance(n, ast.Attribute):
            owner = ast.unparse(n.value).rpartition(".")[2]
            found |= {f"{owner}.{n.attr}", f".{n.attr}"}
    return found


def best_test(module: str, name: str, result: str, uses: dict[str, set[str]]) -> str | None:
    """The test to cite: of the function's own test file, named after the result, about its values."""
    home = module.rpartition(".")[2]
    found = [test for test, names in uses.items() if names & aliases(module, name)]
    number = re.search(
        r"(lemma|algorithm|corollary|equation)\w*\.? ([\d.]+)",
        result.lower().replace("eq.", "equation"),
    )
    words = f"{number[1]}\\w*_{number[2].replace('.', '_')}(_|$)" if number else "$^"

    def rank(test: str) -> tuple[bool, ...]:
        return (
            f"/test_{home}.py::" not in test,
            not re.search(words, test),
            bool(ELSEWHERE.search(test)),
            not any(word in test for word in (name.rpartition(".")[2], home)),
        )

    return min(found, key=rank, default=None)


def aliases(module: str, name: str) -> set[str]:
    """How other files call a function or method, in the spelling of `used_names`."""
    last, home = name.rpartition(".")[2], module.rpartition(".")[2]
    border = "algorithms" if module.startswith("algorithms.") else "ts"
    return {f".{last}"} if "." in name else {last, f"{border}.{last}", f"{home}.{last}"}


def results(root: Path = ROOT) -> list[Result]:
    """Every cited result, paper by paper in the order of `PAPERS`, others after them."""
    uses, package = tests_by_name(root / "tests"), root / "torchsko"
    bodies = package_bodies(package)

    def test_of(module: str, name: str, result: str) -> str | None:
        near, seen = [(module, name)], set()
        while near:  # the function, then those that call it, then those that call them
            if test := next(filter(None, (best_test(*who, result, uses) for who in near)), None):
                return test
            seen |= set(near)
            wanted = set().union(*(aliases(*who) for who in near))
            near = [who for who, names in bodies.items() if names & wanted and who not in seen]
        return None

    found = {
        Result(paper, result, f"{module}.{name}", test_of(module, name, result))
        for module, name, doc in public_functions(package)
        for paper, result in citations(doc)
    }
    order = [*PAPERS]

    def key(r: Result) -> tuple:
        numbers = [int(n) for n in re.findall(r"\d+", r.result)]
        kind = re.sub(r"[^A-Za-z]", "", r.result)[:3].lower()
        return (
            order.index(r.paper) if r.paper in order else len(order),
            r.paper,
            kind,
            numbers,
            r.function,
        )

    return sorted(found, key=key)


def table(found: list[Result]) -> str:
    """The results as markdown, one table per paper."""
    lines = []
    for paper in dict.fromkeys(r.paper for r in found):
        title = f"*{PAPERS[paper]}*" if paper in PAPERS else ""
        lines += [
            f"**{paper}** {title}".rstrip(),
            "",
            "| result | function | test |",
            "|---|---|---|",
        ]
        lines += [r.row for r in found if r.paper == paper]
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--update", type=Path, help="file whose table, between its markers, to replace"
    )
    parser.add_argument("--check", type=Path, help="file whose table to compare")
    args = parser.parse_args()
    found = results()
    text, file = table(found), args.update or args.check
    if file is None:
        print(text)
        return 0
    before, _, rest = file.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    if args.update:
        file.write_text(f"{before}{BEGIN}\n{text}{END}{after}")
        return 0
    for r in found:
        if r.test is None:
            print(
                f"{r.function} cites {r.paper}, {r.result}, and no test calls it", file=sys.stderr
            )
    stale = old.strip() != text.strip()
    if stale:
        print(f"{file} is out of date: run {Path(__file__).name} --update {file}", file=sys.stderr)
    return int(stale or any(r.test is None for r in found))


if __name__ == "__main__":
    sys.exit(main())
