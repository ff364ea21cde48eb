"""The eight postal sorting offices of the book's story: their names, and the color that each of them keeps everywhere."""

from __future__ import annotations

from dataclasses import dataclass

SHARED = "#0072B2"
"""Blue: what all offices share. No office has it, so that blue never means anything else."""


@dataclass(frozen=True)
class Office:
    """A client of the story."""

    name: str
    color: str
    """On a light ground; from the palette of `pfl_lite.show.plots`, far from the other seven also for color-blind readers."""
    dark: str
    """The same color for lines on a dark ground."""

    @property
    def letter(self) -> str:
        """The first letter of the name, which stands beside the color wherever the name has no room."""
        return self.name[0]


OFFICES: tuple[Office, ...] = (
    Office("Ashford", "#E69F00", "#E69F00"),
    Office("Brookline", "#CC79A7", "#CC79A7"),
    Office("Clearwater", "#009E73", "#009E73"),
    Office("Dunmore", "#D55E00", "#E0701A"),
    Office("Easton", "#661100", "#B8604A"),
    Office("Fairview", "#999933", "#B5B54A"),
    Office("Glenwood", "#332288", "#8577E0"),
    Office("Hillsdale", "#6E6E6E", "#9AA3AD"),
)
