"""Starts pricing."""

from __future__ import annotations

from hadare.runtime.bus import Backplane
from hadare.runtime.service import run
from hadare_pricing.config import PricingConfig
from hadare_pricing.service import Pricing


async def main(backplane: Backplane, config: PricingConfig) -> None:
    await Pricing(backplane, config.horizon_rounds).run()


if __name__ == "__main__":
    run("pricing", PricingConfig, main)
