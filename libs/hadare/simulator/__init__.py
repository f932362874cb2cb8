"""A second shell around the machines of the live system: virtual time, pretended training, the same decisions."""
