"""The story that `bpg demo` tells: six styles learned one after another, and what is left of each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from importlib.resources import files
from pathlib import Path
from textwrap import fill

from bpg.cli.app import Common
from bpg.cli.experiments import rows_of
from bpg.cli.images import check_place, tell_unreadable
from bpg.cli.tables import print_json
from bpg.data.benchmarks.emoji import STYLES
from bpg.errors import ModelError, WrongUse
from bpg.experiments.manifest import find, prepare
from bpg.experiments.plan import Planned, plan
from bpg.experiments.records import Run
from bpg.experiments.runner import Show, run_cell
from bpg.experiments.spec import Spec, cells, read_spec
from bpg.experiments.workshop import backbone_of
from bpg.methods.bpg import BPG
from bpg.metrics import average_accuracy, forgetting_since_learned
from bpg.report.blocks import Page, Section
from bpg.report.contents import contents
from bpg.report.html import html
from bpg.report.pictures import look_at
from bpg.store import digest_of

MARK = ".demo"  # in a folder that a demo made; in it, the digests of the models that demos put there
SPEC = Path(str(files("bpg").joinpath("shipped", "demo.toml")))
Tell = Callable[[str], None]

OPENING = """\
The same things, drawn in six styles: animals, faces, food, vehicles and more.
A model shall learn to tell them apart in one style after another. No image of
an earlier style is kept, and nobody says which style a new picture is in. That
is domain-incremental learning.

The usual way is to fine-tune one network on each style in turn: it forgets.
bpg leaves a vision transformer frozen and gives each style a small expert
beside it. How large follows from how well the frozen features separate the
classes in that style: the worse (low s_t), the more room (high rank r_t).
"""
MATRICES = {
    "bpg": "bpg learns one style after another. Percent right on the test images:",
    "finetune": "The same styles by fine-tuning one network on each in turn:",
}
WAYS = {
    "calibrated": "bpg, experts mixed (calibrated)",
    "soft": "bpg, as the paper mixes (soft)",
    "hard": "bpg, nearest expert only (hard)",
    "oracle": "bpg, told the style (oracle)",
    "own": "fine-tuning",
}
CLOSING = """\
Now your own images, a folder for each class:
  bpg learn my-model photos --name photo --backbone bpg-vit-nano
  bpg learn my-model sketches --name sketch
  bpg predict my-model somewhere/new.jpg
bpg-vit-nano sees 64 pixels; `bpg backbones` lists larger ones."""


def run_demo(common: Common, out: Path, changes: list[str]) -> None:
    """Tell the story as it happens, and leave a model and a page in `out`."""
    tell: Tell = _nothing if common.json or common.quiet else partial(print, flush=True)
    spec = read_spec(SPEC, changes + ([f"seeds=[{common.seed}]"] if common.seed is not None else []))
    _check_spec(spec)
    _check_out(out)
    backbone = backbone_of(spec, common.use_machine())
    tell(OPENING)
    runs: dict[str, Run] = {}

    def bar(title: str) -> AbstractContextManager[Show]:
        return common.bar(title.rpartition(": ")[2])  # the domain: the story has told whose turn it is

    try:
        with common.bar("images") as show:
            data = prepare(spec, find(spec.data), show)
        tell_unreadable(common, data.manifest)
        with common.bar("survey") as show:
            model = cells(spec)[0].build(backbone, progress=show)
            assert isinstance(model, BPG)
            planned = plan(model, data.stream.domains)
        tests = {test.domain: len(test.images) for test in data.stream.tests}
        _tell_plan(tell, planned, tests)
        for cell in cells(spec):
            matrix = Matrix(tell, MATRICES[cell.method])
            runs[cell.method] = run = run_cell(spec, cell, backbone, data, out / "runs", bar=bar, after=matrix.tell_new)
            matrix.tell_new(run)
    except KeyboardInterrupt:
        common.say("Nothing is lost: the same command goes on from here.")
        raise
    model_folder, page = _placed(runs["bpg"].folder / "model", out), out / "page.html"
    if model_folder != out / "model":
        common.say(f"note: {out / 'model'} is not what a demo left there, and stays as it is.")
    told = in_words(runs["bpg"], runs["finetune"])
    shown = contents(list(runs.values()), look_at())
    opening = Section("What this is", [*OPENING.replace("\n", " ").strip().split("  "), *told])
    page.write_text(html(Page("bpg: six styles, one after another", [opening, *shown.sections])), encoding="utf-8")
    if common.json:
        results = [row for run in runs.values() for row in rows_of(run)]
        print_json({"results": results, "model": str(model_folder), "page": str(page)})
        return
    _tell_results(runs["bpg"], runs["finetune"])
    print("\nIn words:")
    for sentence in told:
        print(fill(sentence, 78, initial_indent="  ", subsequent_indent="  "))
    print(f"\nThe model is in {model_folder}, a page to look at in {page}\n")
    tell(CLOSING)


def _check_spec(spec: Spec) -> None:
    """Refuse what the story cannot be told of."""
    known = [cell.method for cell in cells(spec)] == list(MATRICES)
    order = spec.data.order
    if not known or spec.data.benchmark != "emoji" or (order is not None and set(order) != set(STYLES)):
        raise WrongUse(
            "the demo tells another story",
            wanted="the six styles of emoji, learned by bpg and by finetune, with one seed",
            came=f"{spec.data.benchmark or spec.data.root}, {', '.join(spec.methods)}, seeds {list(spec.seeds)}",
            remedy="Write a config of your own and give it to `bpg run`.",
        )


def _check_out(out: Path) -> None:
    """Make the folder, or refuse one with things in it that no demo made; told before anything is learned."""
    check_place(out, "the demo")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file():
        raise WrongUse(
            f"{out} is no place for the demo",
            wanted="a new folder, or that of an earlier demo",
            came="a folder with other things in it",
            remedy="Name another with --out.",
        )
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).open("a").close()


def _placed(model: Path, out: Path) -> Path:
    """Where `model` is now: copied to `out`, in the place of an earlier demo's but of nothing else."""
    to, old, part = out / "model", out / ".model.old", out / ".model.part"
    digest = digest_of(model)
    if to.exists():
        try:
            there = digest_of(to)
        except ModelError:
            return model
        if there == digest:
            return to
        if there not in (out / MARK).read_text().split():
            return model
    for left in (old, part):  # by a demo that was killed here
        shutil.rmtree(left, ignore_errors=True)
    try:
        shutil.copytree(model, part)
    except shutil.Error as error:  # a list of what happened to each file
        raise OSError(f"cannot copy the model to {to}: {error.args[0][0][-1]}") from error
    with (out / MARK).open("a") as marks:
        marks.write(f"{digest}\n")
    if to.exists():
        to.rename(old)
    part.rename(to)
    shutil.rmtree(old, ignore_errors=True)
    return to


class Matrix:
    """The accuracy matrix, told row by row as the run grows."""

    def __init__(self, tell: Tell, title: str) -> None:
        self.tell = tell
        self.told = 0
        tell(f"\n{title}")

    def tell_new(self, run: Run) -> None:
        """Tell the rows that were not yet told."""
        rows = run.counts(run.ways[0]).accuracies
        width = _width(run.order)
        if not self.told and len(rows):
            numbers = "".join(f"{number:6}" for number in range(1, len(run.order) + 1))
            self.tell(f"  {'after learning':<{width}}{numbers}")
        for place in range(self.told, len(rows)):
            percents = "".join(f"{value:6.1f}" for value in rows[place][: place + 1])
            self.tell(f"  {_numbered(run.order, place):<{width}}{percents}")
        self.told = len(rows)


def _tell_plan(tell: Tell, planned: Sequence[Planned], tests: Mapping[str | None, int]) -> None:
    names = [each.domain for each in planned]
    tell(f"  {'style':<{_width(names)}} learn   test    s_t   r_t    numbers")
    for place, each in enumerate(planned):
        s_t = "     -" if each.separability is None else f"{each.separability:6.2f}"
        tell(
            f"  {_numbered(names, place):<{_width(names)}}{each.images:6}{tests.get(each.domain, 0):7} {s_t}"
            f"{each.rank:6}{each.parameters:11,}"
        )


def _tell_results(ours: Run, other: Run) -> None:
    """What came out, as a table."""
    print("\nAfter the last style: percent right over all styles, and what old ones lost since they were learned:")
    print(f"  {'':<32} right   lost")
    for run in (ours, other):
        for way in run.ways:
            counts = run.counts(way)
            name = WAYS.get(way, f"bpg, {way}")
            lost = round(forgetting_since_learned(counts), 1) + 0.0  # no minus before a nought
            print(f"  {name:<32}{average_accuracy(counts):6.1f}{lost:7.1f}")


def in_words(ours: Run, other: Run) -> list[str]:
    """What came out, for somebody who has never seen such a table."""
    first = ours.order[0]
    kept, faded = (run.counts(run.ways[0]).accuracies[:, 0] for run in (ours, other))
    ours_lost, other_lost = (forgetting_since_learned(run.counts(run.ways[0])) for run in (ours, other))
    mixed, hard, oracle = (average_accuracy(ours.counts(way)) for way in (ours.ways[0], "hard", "oracle"))
    better = "better than" if mixed > hard else "not better than"
    return [
        f"Fine-tuning was right on {faded[0]:.0f} % of the {first} images when it had just learned them, and on "
        f"{faded[-1]:.0f} % after {len(ours.order) - 1} more styles. bpg was right on {kept[0]:.0f} %, then on "
        f"{kept[-1]:.0f} %, and nobody told it the style.",
        f"From when each was learned to the end, the old styles lost {other_lost:.1f} points on average by "
        f"fine-tuning, {ours_lost:.1f} with bpg. Its experts themselves have not changed by a bit; what it loses, it "
        "loses by asking the wrong ones.",
        f"Mixing the experts that are near ({mixed:.1f} % right) is {better} asking the nearest alone ({hard:.1f} %). "
        f"Who is told the style reaches {oracle:.1f} %.",
    ]


def _numbered(names: Sequence[str], place: int) -> str:
    return f"{place + 1} {names[place]}"


def _width(names: Sequence[str]) -> int:
    return max(14, *(len(name) + 2 for name in names))


def _nothing(_: str) -> None:
    pass
