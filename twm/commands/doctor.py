"""``twm doctor``."""

from __future__ import annotations

from dataclasses import dataclass

from twm.commands import Output


@dataclass(frozen=True)
class Doctor:
    """Show what this machine offers: torch build, devices, threads, games, optional parts and how to install them."""

    json: bool = False
    """Print one JSON object."""

    def __call__(self) -> Output:
        from twm import doctor

        found = doctor.examine()
        return Output(found, doctor.describe(found))
