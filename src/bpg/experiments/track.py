"""A run's losses and accuracies for TensorBoard, from its records: written anew whenever a domain is learned."""

from __future__ import annotations

import shutil
from pathlib import Path

from bpg.errors import WrongUse
from bpg.experiments.records import Run


def track_run(run: Run, folder: Path) -> None:
    """Write what is known of `run` below `folder`: a curve of the loss for each domain, and accuracies by stage."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise WrongUse(
            "TensorBoard is not installed",
            wanted="the package tensorboard",
            came="none",
            remedy="pip install 'bpg-dil[track]', or leave --track out.",
        ) from error
    place = folder / run.folder.parent.name / run.folder.name
    shutil.rmtree(place, ignore_errors=True)  # it knows no events but what the records say
    with SummaryWriter(str(place)) as writer:
        for domain, curve in run.curves.items():
            for step, loss in curve:
                writer.add_scalar(f"loss/{domain}", loss, step)
        for record in run.records:
            for way, tests in record["ways"].items():
                total = sum(test["total"] for test in tests)
                if total:
                    share = 100 * sum(test["correct"] for test in tests) / total
                    writer.add_scalar(f"A_t/{way}", share, record["stage"])
                for test in tests:
                    if way == record["own"] and test["total"]:
                        right = 100 * test["correct"] / test["total"]
                        writer.add_scalar(f"right/{test['name']}", right, record["stage"])
