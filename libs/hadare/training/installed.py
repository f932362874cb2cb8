"""What an interpreter has installed, as JSON on stdout. Standard library only: any interpreter can run this text."""

import json
import os
import platform
import sys
from importlib import metadata


def describe(names: list[str]) -> dict[str, dict[str, str]]:
    """Versions of those of the distributions that are there, and the values of PEP 508's markers."""
    versions: dict[str, str] = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    kind = sys.implementation
    environment = {
        "implementation_name": kind.name,
        "implementation_version": ".".join(map(str, kind.version[:3])),
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "sys_platform": sys.platform,
    }
    return {"versions": versions, "environment": environment}


if __name__ == "__main__":
    print(json.dumps(describe(sys.argv[1:])))
