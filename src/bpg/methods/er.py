"""ER: images of earlier domains are kept, and with every batch of the new domain as many of them are trained on. They
are drawn anew each time and cropped anew. Which are kept is decided by reservoir sampling, so that every image seen so
far has the same chance.

Trained: the whole network and one head.
Stored: the network and M images.
Paper: Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019, arXiv 1902.10486.
Here: the memory changes when a domain is learned, not within it: while it is learned, images of older domains alone
come back. The reservoir counts every image once, whatever the number of epochs. One rate of 1e-3 trains backbone and
head, as PILOT fine-tunes, where others give the head 1e-2.
"""

from __future__ import annotations

from bpg.config import settings
from bpg.data.domain import Domain
from bpg.methods.parts.memory import MemorySettings
from bpg.methods.parts.whole import Whole, WholeSettings
from bpg.training import Optimisation


@settings
class ERSettings(WholeSettings):
    """Fine-tuning, and what is kept."""

    optimisation: Optimisation = Optimisation(epochs=15, batch_size=64, lr=1e-3, weight_decay=5e-4)
    memory: MemorySettings = MemorySettings()


@settings
class HerdedSettings(ERSettings):
    """Fine-tuning, and kept images that stand for their class and domain."""

    optimisation: Optimisation = Optimisation(epochs=15, lr=1e-3, weight_decay=5e-4)
    memory: MemorySettings = MemorySettings(choice="herding")


class ER(Whole):
    """Fine-tuning with images of earlier domains in every batch."""

    method = "er"
    Settings = ERSettings
    settings: ERSettings

    def learn(self, domain: Domain) -> None:
        network = self.grown(domain)
        network = self.train(network, domain, **self.replayed(network, domain))
        self.memory, self.network = self.remembered(network, domain), network
