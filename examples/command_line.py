"""The command line of the examples: options with defaults, and a folder of the figure."""

import argparse
from pathlib import Path


def parse_options(doc, **options):
    """Options by name, each a default (False for a switch) or (default, help); and `out`, a folder."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    for name, option in options.items():
        default, text = option if isinstance(option, tuple) else (option, None)
        kind = {"action": "store_true"} if default is False else {"type": type(default)}
        parser.add_argument(f"--{name}", default=default, help=text, **kind)
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the figure")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    return args


def save_figure(figure, path, **options):
    """Save a figure, and print where."""
    figure.savefig(path, **{"dpi": 150} | options)
    print("figure:", path)
