import importlib.util
from pathlib import Path
from types import ModuleType

PICTURES = Path(__file__).parents[3] / "docs" / "explanation" / "pictures"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PICTURES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_of_the_algorithms_shows_what_the_policies_decide_today() -> None:
    assert (PICTURES / "algorithms.svg").read_text(encoding="utf-8") == script("algorithms").draw()
