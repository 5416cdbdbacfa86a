"""Names to things: those that ship, and those that other packages bring through entry points.

A name has one owner. A plug-in that cannot be imported is an error for whoever asks for it, and for nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from bpg.errors import PluginError, unknown_name


class Registry(Mapping[str, Any]):
    """The things of one kind, by name; each is imported when it is asked for."""

    def __init__(self, kind: str, group: str, shipped: Mapping[str, str]) -> None:
        self.kind, self.group = kind, group
        self._shipped = {name: EntryPoint(name, where, group) for name, where in shipped.items()}

    def __getitem__(self, name: str) -> Any:
        if name not in self._owners:
            raise unknown_name(self.kind, name, self._owners)
        owner = self._owners[name]
        try:
            return owner.load()
        except Exception as error:  # whatever a foreign module does when it is imported
            raise PluginError(
                f"the {self.kind} {name} cannot be loaded",
                wanted=f"{owner.value} to import",
                came=f"{type(error).__name__}: {error}",
                remedy="Update or remove the package that brings it.",
            ) from error

    def __contains__(self, name: object) -> bool:
        return name in self._owners  # without importing anything

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._owners))

    def __len__(self) -> int:
        return len(self._owners)

    @cached_property
    def _owners(self) -> dict[str, EntryPoint]:
        owners = dict(self._shipped)
        for point in entry_points(group=self.group):
            if point.name in owners and owners[point.name].value != point.value:
                raise PluginError(
                    f"two packages bring a {self.kind} called {point.name}",
                    wanted="one owner of a name",
                    came=f"{owners[point.name].value} and {point.value}",
                    remedy="Remove one of them.",
                )
            owners[point.name] = point
        return owners


METHODS = Registry(
    "method",
    "bpg.methods",
    {
        name: f"bpg.methods.{where}"
        for name, where in {
            "bpg": "bpg:BPG",
            # bounds
            "finetune": "finetune:FineTune",
            "joint": "joint:Joint",
            "linear_probe": "linear_probe:LinearProbe",
            "sequential_probe": "sequential_probe:SequentialProbe",
            "ncm": "ncm:NCM",
            # regularisation
            "ewc": "ewc:EWC",
            "lwf": "lwf:LwF",
            # rehearsal
            "er": "er:ER",
            "derpp": "derpp:DERpp",
            "gdumb": "gdumb:GDumb",
            "icarl": "icarl:ICaRL",
            "lucir": "lucir:LUCIR",
            "bic": "bic:BiC",
            # an expert for each domain
            "s_iprompts": "s_prompts:SiPrompts",
            "s_liprompts": "s_prompts:SliPrompts",
            "pina": "pina:PINA",
            "soyo": "soyo:SOYO",
            # prompts under one head
            "l2p": "l2p:L2P",
            "dualprompt": "dualprompt:DualPrompt",
            "coda_prompt": "coda_prompt:CODAPrompt",
            "c_prompt": "c_prompt:CPrompt",
            "ka_prompt": "ka_prompt:KAPrompt",
            # frozen features
            "ranpac": "ranpac:RanPAC",
        }.items()
    },
)
ROUTERS = Registry(
    "router",
    "bpg.routers",
    {"calibrated": "bpg.routing:calibrated", "soft": "bpg.routing:soft", "hard": "bpg.routing:hard"},
)
BACKBONES = Registry("backbone", "bpg.backbones", {})
DATASETS = Registry(
    "benchmark",
    "bpg.datasets",
    {
        name: f"bpg.data.benchmarks.{where}"
        for name, where in {
            "emoji": "emoji:EMOJI",
            "emoji-unseen": "emoji:UNSEEN_STYLES",
            "domainnet": "domainnet:DOMAINNET",
            "domainnet-fixed": "domainnet:FIXED",
            "dn4il": "dn4il:DN4IL",
            "cddb-hard": "cddb:CDDB_HARD",
            "cddb-easy": "cddb:CDDB_EASY",
            "cddb-long": "cddb:CDDB_LONG",
            "core50": "core50:CORE50",
            "core50-categories": "core50:CORE50_CATEGORIES",
            "pacs": "pacs:PACS",
            "office-home": "office_home:OFFICE_HOME",
            "office-31": "office31:OFFICE31",
            "office-caltech10": "office_caltech:OFFICE_CALTECH",
            "vlcs": "vlcs:VLCS",
            "imagenet-r": "imagenet_r:IMAGENET_R",
            "corruptions": "corruptions:CORRUPTED",
            "rotated-digits": "digits:ROTATED",
            "permuted-digits": "digits:PERMUTED",
        }.items()
    },
)
