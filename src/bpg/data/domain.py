"""Domains to learn, and the test sets beside them."""

from __future__ import annotations

from dataclasses import dataclass

from bpg.data.images import ImageSet
from bpg.errors import WrongUse

LONGEST_NAME = 200
TEMPLATE = "a photo of a {}."


def check_name(name: str) -> None:
    """Raise WrongUse for what cannot be a domain's name."""
    if not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        raise WrongUse(
            "no name for a domain",
            wanted=f"1 to {LONGEST_NAME} printable characters",
            came=repr(name[:40]),
            remedy="Give it a plain name, such as the site or the style.",
        )


@dataclass(frozen=True, slots=True)
class Domain:
    """A visual domain: a name, its training images, and a text for CLIP that names one of its classes."""

    name: str
    train: ImageSet
    template: str = TEMPLATE

    def __post_init__(self) -> None:
        check_name(self.name)
        if not self.train:
            raise WrongUse(
                f"the domain {self.name} is empty", wanted="training images", came="none", remedy="Check the folder."
            )
        if self.template.count("{}") != 1 or "{" in self.template.replace("{}", ""):
            raise WrongUse(
                f"no template for the classes of {self.name}",
                wanted="a text with one {} in it",
                came=repr(self.template),
                remedy=f"Write it as in {TEMPLATE!r}.",
            )

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes that it has images of, sorted."""
        return tuple(sorted({self.train.classes[label] for label in self.train.labels}))


@dataclass(frozen=True, slots=True)
class TestSet:
    """Images to be tested on. `domain` is the one they come from, or None where they come from none that is learned."""

    images: ImageSet
    domain: str | None
    label: str = ""  # a name of its own, where the domain is none

    __test__ = False  # to pytest, a class of this name is no test

    @property
    def name(self) -> str:
        return self.label or self.domain or "test"


@dataclass(frozen=True, slots=True)
class DomainStream:
    """Domains in the order of learning, and test sets apart from them."""

    name: str
    domains: tuple[Domain, ...]
    tests: tuple[TestSet, ...]

    def __post_init__(self) -> None:
        names = [domain.name for domain in self.domains]
        unknown = {test.domain for test in self.tests} - {*names, None}
        if not names or len(set(names)) != len(names) or unknown:
            raise WrongUse(
                f"the stream {self.name} does not fit together",
                wanted="at least one domain, all of different names, and test sets of these or of none",
                came=f"domains {names}, test sets of {sorted(map(str, unknown))} besides" if unknown else f"{names}",
                remedy="Give every domain one name.",
            )

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of all classes, sorted."""
        return tuple(sorted({name for domain in self.domains for name in domain.classes}))
