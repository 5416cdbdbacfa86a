"""Sequential fine-tuning: the whole network goes on training on each new domain, and nothing protects the old ones.

The lower yardstick of the field: what a method must beat to be worth its name.
"""

from __future__ import annotations

from bpg.data.domain import Domain
from bpg.methods.parts.whole import Whole, WholeSettings


class FineTune(Whole):
    """One network and one head for all domains, trained on each in turn."""

    method = "finetune"
    Settings = WholeSettings

    def learn(self, domain: Domain) -> None:
        self.train(domain)
