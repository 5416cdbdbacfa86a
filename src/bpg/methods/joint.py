"""Joint training: after each domain, a network is trained anew on the images of all domains so far. Nothing is learned
one after another, so that nothing can be forgotten. It is the bound that a continual learner is measured against.

Trained: the whole network and one head, from the pre-trained weights on.
Stored: the network, and where the images of all domains are.
Paper: none; the upper bound of most of them. Settings as for fine-tuning, the same epochs over every image.
Here: images of all domains are shuffled together as they are, so that large domains weigh more. It is a bound for what
trains the same parameters: isolated experts can do better.
"""

from __future__ import annotations

import sys

from bpg.data.domain import Domain
from bpg.methods.parts.memory import Memory, MemorySettings
from bpg.methods.parts.whole import Whole, WholeSettings


class Joint(Whole):
    """One network, trained anew on the images of all domains so far: the upper bound."""

    method = "joint"
    Settings = WholeSettings

    def begin(self) -> None:
        super().begin()
        self.memory = Memory(MemorySettings(images=sys.maxsize, keep="references"))

    def learn(self, domain: Domain) -> None:
        network = self.grown(domain, self.build())
        network = self.train(network, self.memory.joined(domain, self.row))
        self.network, self.memory = network, self.remembered(network, domain)
