"""What methods say of themselves, in the docs and in `bpg methods`."""

from __future__ import annotations

import pytest
from tools.method_pages import PLACE, pages

from bpg.methods.pages import PARTS, page
from bpg.registry import METHODS
from tests.conftest import ROOT


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_says_what_it_is(name: str) -> None:
    told = page(name)
    assert tuple(told.parts) == PARTS
    assert all(text.endswith((".", ")")) for text in told.parts.values())
    assert told.idea.count(". ") + 1 == 3, "the idea, in three sentences"
    assert told.summary.endswith(".")
    seed, *_ = told.settings
    assert seed.name == "seed"


def test_settings_are_told_with_their_defaults_and_what_they_are() -> None:
    told = {each.name: each for each in page("derpp").settings}
    assert told["alpha"].default == 0.3
    assert "old logits" in told["alpha"].what
    assert told["memory.images"].default == 2000  # of a part of them
    assert told["optimisation.lr"].what == "at its highest"


def test_the_pages_in_the_docs_are_those_of_the_code() -> None:
    written = {file.name: file.read_text(encoding="utf-8") for file in PLACE.glob("*.md")}
    assert written == pages(), "python tools/method_pages.py writes them"
    assert PLACE.is_relative_to(ROOT)
