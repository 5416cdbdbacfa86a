"""Put the weights and their figures into the package.

python -m pretrain.ship WORK
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from pretrain.train import FILE

PACKAGE = Path(__file__).parents[1] / "src" / "bpg" / "shipped" / "bpg-vit-nano"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    work: Path = parser.parse_args().work
    for name in (FILE, "figures.json"):
        shutil.copyfile(work / name, PACKAGE / name)
        print(PACKAGE / name)
    print("Now bring s_0 in src/bpg/backbones/catalogue.toml and the card's table in line: a test compares them.")


if __name__ == "__main__":
    main()
