"""Workloads on real data that installed packages ship: nothing is downloaded, everything is seeded.

``digits`` classifies images, ``weather`` predicts a temperature, ``charlm`` models text, ``translation`` translates,
``recommendation`` guesses ratings. Each is small enough for a CPU and scalable by its config. Importing a module here
reads no data.
"""

BUILTIN = (
    "hadare.training.workloads.digits:Digits",
    "hadare.training.workloads.weather:Weather",
    "hadare.training.workloads.charlm:CharLM",
    "hadare.training.workloads.translation:Translation",
    "hadare.training.workloads.recommendation:Recommendation",
)
