"""Write docs/methods/: a page for each method that ships, and the list of them.

python tools/method_pages.py
"""

from __future__ import annotations

from pathlib import Path

from bpg.methods.pages import markdown, page
from bpg.registry import METHODS

PLACE = Path(__file__).parent.parent / "docs" / "methods"


def pages() -> dict[str, str]:
    """What belongs into the folder, by file name."""
    found = {f"{name}.md": markdown(page(name)) for name in METHODS}
    rows = [f"| [`{name}`]({name}.md) | {page(name).summary} |" for name in METHODS]
    head = [
        "# Methods",
        "",
        "From the methods' own docstrings, by `python tools/method_pages.py`; as `bpg methods NAME`.",
        "",
    ]
    found["README.md"] = "\n".join([*head, "| method | |", "| --- | --- |", *rows, ""])
    return found


if __name__ == "__main__":
    PLACE.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (PLACE / name).write_text(text, encoding="utf-8")
