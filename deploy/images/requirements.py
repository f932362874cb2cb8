"""Prints what pyproject.toml requires, with the extras named on the command line: an image's dependencies.

They are installed before the source is copied, so that a change of the source does not install them anew.
"""

import re
import sys
import tomllib


def requirements(project: dict, extras: list[str]) -> list[str]:
    """The project's requirements and those of its extras; an extra may name further extras (``hadare[a,b]``)."""
    found = list(project["dependencies"])
    queue = list(extras)
    while queue:
        for requirement in project["optional-dependencies"][queue.pop()]:
            own = re.fullmatch(rf"{project['name']}\[([\w,-]+)\]", requirement)
            if own:
                queue.extend(own.group(1).split(","))
            else:
                found.append(requirement)
    return sorted(set(found))


if __name__ == "__main__":
    with open("pyproject.toml", "rb") as file:  # noqa: PTH123 - runs in a bare image, as plain as can be
        print("\n".join(requirements(tomllib.load(file)["project"], sys.argv[1:])))
