"""Sequential fine-tuning: the whole network goes on training on each new domain. Nothing protects the old ones. It is
the lower yardstick of the field: what a method must beat to be worth its name.

Trained: the whole network and one head.
Stored: the network.
Paper: none; settings as in PILOT (Sun et al., 2023, arXiv 2309.07117), whose weight decay falls to 2e-4 after the first
domain; here it stays.
Here: one head for the classes that all domains share; `labels = "expanded"` gives every domain rows of its own, as
class-incremental code does, of which the best answers for its class.
"""

from __future__ import annotations

from bpg.data.domain import Domain
from bpg.methods.parts.whole import Whole, WholeSettings


class FineTune(Whole):
    """One network and one head for all domains, trained on each in turn."""

    method = "finetune"
    Settings = WholeSettings

    def learn(self, domain: Domain) -> None:
        self.network = self.train(self.grown(domain), domain)
