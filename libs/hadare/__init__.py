"""HadarE: trains deep-learning jobs on clusters of unequal GPUs and leaves none of them idle."""

__version__ = "0.1.0"
