"""GDumb: as many images of every class of every domain are kept, and nothing else is learned from a domain. When the
model is to answer, a network is trained on the kept images alone, from the pre-trained weights on. It asks what all the
other machinery of rehearsal is worth.

Trained: the whole network and one head, anew after each domain.
Stored: M images, and the network, which could be trained from them again.
Paper: Prabhu, Torr and Dokania, "GDumb: A Simple Approach that Questions Our Progress in Continual Learning", ECCV
2020.
Here: cells of class and domain are balanced, where the original balances classes. The network begins from pre-trained
weights, not from nothing, and is trained for fewer passes, at a rate that falls once. No CutMix; the last epoch counts,
not the best one on test images. The memory is balanced when a domain is learned, not image by image. One rate of 1e-3
trains backbone and head, as PILOT fine-tunes, where others give the head 1e-2.
"""

from __future__ import annotations

from dataclasses import replace

from bpg.config import settings
from bpg.data.domain import Domain
from bpg.errors import WrongUse
from bpg.methods.parts.memory import MemorySettings
from bpg.methods.parts.whole import Whole, WholeSettings
from bpg.training import Optimisation


@settings
class GDumbSettings(WholeSettings):
    """How the memory is learned."""

    optimisation: Optimisation = Optimisation(epochs=30, batch_size=64, lr=1e-3, weight_decay=1e-6, clip_norm=10.0)
    memory: MemorySettings = MemorySettings(choice="balanced")


class GDumb(Whole):
    """A network trained anew on a balanced memory after each domain."""

    method = "gdumb"
    Settings = GDumbSettings
    settings: GDumbSettings

    def learn(self, domain: Domain) -> None:
        if not self.settings.memory.images:
            raise WrongUse("GDumb keeps no images", wanted="memory.images above 0", came="0", remedy="Raise it.")
        network = self.grown(domain, self.build())
        memory = self.remembered(network, domain)
        self.network = self.train(network, replace(domain, train=memory.images(self.row)))
        self.memory = memory
