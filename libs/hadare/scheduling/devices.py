"""Device types: one canonical name each, its published figures, and the performance-memory index made of them.

The table (``hadare/tables/gpu_specs.csv``) holds peak FP32 TFLOPS, memory bandwidth (GB/s), memory (GB) and PCIe
(GB/s each way) of the form that is most common of a type. An index cannot see what a model is bound by: it is a
first guess, and measurements replace it.
"""

from __future__ import annotations

import csv
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from math import sqrt
from types import MappingProxyType

REFERENCE_TYPE = "V100"
UNKNOWN_LIKE = "T4"
"""A type that the table does not know counts as this one until it is measured."""

_MAKER = re.compile(r"nvidia|tesla|geforce|quadro|graphics")
_FORM = re.compile(r"(sxm\d?|pcie|hbm\d?e?|nvl|dgxs|fhhl|generation|laptop|gpu|mig|\d+gb).*")
_OUTSIDE_A_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME = 32


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Published figures of one device of a type (of a K80: one of its two dies)."""

    type: str
    tflops: float
    bandwidth_gb_s: float
    memory_gb: float
    pcie_gb_s: float
    aliases: tuple[str, ...] = ()

    @property
    def pmi(self) -> float:
        """Performance-memory index: the geometric mean of TFLOPS and GB/s."""
        return sqrt(self.tflops * self.bandwidth_gb_s)


@lru_cache(maxsize=1)
def load_specs() -> Mapping[str, DeviceSpec]:
    """Every known type by its canonical name, in the table's order."""
    text = resources.files("hadare.tables").joinpath("gpu_specs.csv").read_text(encoding="utf-8")
    return MappingProxyType({row["type"]: _spec(row) for row in csv.DictReader(text.splitlines())})


@lru_cache(maxsize=4096)
def canonical_type(name: str) -> str:
    """The one name of a type, whatever the spelling: ``Tesla V100-SXM2-16GB`` and ``v100`` are both ``V100``.

    An unknown name comes back as a legal type name made of its own letters.
    """
    folded, aliases = _fold(name), _aliases()
    if folded in aliases:
        return aliases[folded]
    for alias in sorted(aliases, key=len, reverse=True):
        if folded.startswith(alias) and _FORM.fullmatch(folded[len(alias) :]):
            return aliases[alias]
    return _OUTSIDE_A_NAME.sub("-", name).strip("-_")[:_LONGEST_NAME] or "unknown"


def nearest_type(name: str) -> str:
    """``; did you mean X?``, or nothing if no known type is written much like it."""
    names = {known.lower(): known for known in load_specs()}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    return f"; did you mean {names[near[0]]}?" if near else ""


def spec_of(device_type: str) -> DeviceSpec:
    """The figures of a type; those of ``UNKNOWN_LIKE`` if the table lacks it."""
    specs = load_specs()
    return specs.get(canonical_type(device_type)) or specs[UNKNOWN_LIKE]


def pmi(device_type: str) -> float:
    """Performance-memory index, ``sqrt(TFLOPS · GB/s)``."""
    return spec_of(device_type).pmi


def relative_speed(device_type: str) -> float:
    """The type's index relative to a V100's: what emulated devices are throttled to."""
    return pmi(device_type) / pmi(REFERENCE_TYPE)


def _spec(row: Mapping[str, str]) -> DeviceSpec:
    return DeviceSpec(
        type=row["type"],
        tflops=float(row["fp32_tflops"]),
        bandwidth_gb_s=float(row["bandwidth_gb_s"]),
        memory_gb=float(row["memory_gb"]),
        pcie_gb_s=float(row["pcie_gb_s"]),
        aliases=tuple(row["aliases"].split(";")),
    )


@lru_cache(maxsize=1)
def _aliases() -> Mapping[str, str]:
    return {_fold(alias): spec.type for spec in load_specs().values() for alias in (spec.type, *spec.aliases)}


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", _MAKER.sub("", name.lower()))
