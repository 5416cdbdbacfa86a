"""What is measured of faster ways to answer, and which of them is recommended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bpg import BPG, ImageSet
from bpg.data.domain import TestSet
from bpg.experiments.evaluation import evaluate
from bpg.experiments.profile import MOST_IMAGES, Profile, choices, profile, recommended
from bpg.progress import Progress
from tests.toy import FAST, GENTLE, toy_backbone, toy_domain, toy_images

EXACT = Profile("exact", 400, 80.0, 100.0, 90.0, 1.5, 100.0, 1.0)


def other(choice: str, accuracy: float, agreement: float, time: float) -> Profile:
    return replace(EXACT, choice=choice, accuracy=accuracy, agreement=agreement, time=time)


@pytest.mark.parametrize(
    ("rivals", "best"),
    [
        ([], "exact"),
        ([other("slower", 90.0, 90.0, 1.1)], "exact"),
        ([other("faster", 80.0, 100.0, 0.8), other("fastest", 80.0, 100.0, 0.5)], "fastest"),
        ([other("worse", 60.0, 70.0, 0.2), other("as good", 80.5, 98.0, 0.6)], "as good"),
        # 36 of 400 answers changed: a loss of 6 of them is chance, of 7 is not
        ([other("chance", 78.5, 91.0, 0.5)], "chance"),
        ([other("loss", 78.25, 91.0, 0.5)], "exact"),
        # the same loss where twice as many answers changed
        ([other("shaken", 78.25, 82.0, 0.5)], "shaken"),
        ([other("one image", 79.75, 99.75, 0.5)], "one image"),
        ([other("two images", 79.5, 99.75, 0.5)], "exact"),  # more lost than changed cannot be chance
    ],
)
def test_the_fastest_that_is_not_worse_is_recommended(rivals: list[Profile], best: str) -> None:
    assert recommended([EXACT, *rivals]).choice == best


def many(folder: Path, name: str, count: int) -> TestSet:
    """A test set of `count` images, of which twelve are different."""
    few = toy_images(folder, name, 12, part="test")
    places = [index * 7 % 12 for index in range(count)]
    paths, labels = tuple(few.paths[place] for place in places), tuple(few.labels[place] for place in places)
    return TestSet(ImageSet(paths, labels, few.classes), name)


def test_of_many_images_some_of_every_test_set_are_looked_at(tmp_path: Path) -> None:
    model = BPG(toy_backbone(), rank=2, optimisation=FAST, augmentation=GENTLE)
    for name in ("red", "blue"):
        model.learn(toy_domain(tmp_path, name))
    tests = [many(tmp_path, "red", 1000), many(tmp_path, "white", 100)]  # white is not learned
    told: list[Progress] = []
    asked = {name: way for name, way in choices(model).items() if name in ("exact", "max_experts 1")}
    exact, one = profile(model, tests, asked, batch_size=128, progress=told.append)
    few = [replace(test, images=test.images.subset(range(0, len(test.images), 3))) for test in tests]
    assert exact.images == one.images == sum(len(test.images) for test in few) == 368 <= MOST_IMAGES
    assert (told[-1].step, told[-1].steps) == (368, 368)
    tallies = evaluate(model, few, ways=asked, batch_size=128)
    for found in (exact, one):
        red, white = tallies[found.choice]
        assert found.accuracy == pytest.approx(100 * (red.correct + white.correct) / 368)
        assert found.domain_found == pytest.approx(100 * red.chosen["red"] / red.total)  # white has none to be found
        spoke = sum(count * images for tally in (red, white) for count, images in tally.experts.items())
        assert found.experts == pytest.approx(spoke / 368)
    assert (exact.agreement, exact.time, one.experts) == (100, 1, 1)
    assert min(exact.images_per_second, one.images_per_second) > 0
