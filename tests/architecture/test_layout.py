"""Disk = installed = documented; modules are small; the repository knows no machine that it was made on."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from hadare.wire import subjects

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WHEEL = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
SERVICES = sorted(folder for folder in (ROOT / "services").iterdir() if folder.is_dir())
MODULES = sorted([*(ROOT / "libs").rglob("*.py"), *(ROOT / "services").rglob("*.py")])
MAX_LINES = 400

NOT_CODE = {"README.md", "Dockerfile", "__pycache__"}


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_the_wheel_holds_exactly_the_packages_on_disk() -> None:
    on_disk = {"libs/hadare", *(f"services/{folder.name}/hadare_{folder.name}" for folder in SERVICES)}
    assert set(WHEEL) == on_disk


def test_the_editable_install_sees_exactly_the_roots_of_these_packages() -> None:
    assert set(PROJECT["tool"]["hatch"]["build"]["dev-mode-dirs"]) == {str(Path(package).parent) for package in WHEEL}


@pytest.mark.parametrize("package", WHEEL)
def test_every_folder_with_modules_is_a_package(package: str) -> None:
    folders = {module.parent for module in (ROOT / package).rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]


@pytest.mark.parametrize("package", WHEEL)
def test_every_package_says_that_it_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


@pytest.mark.parametrize("folder", SERVICES, ids=lambda folder: folder.name)
def test_nothing_is_importable_beside_a_services_package(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} - NOT_CODE == {f"hadare_{folder.name}"}


@pytest.mark.parametrize("folder", SERVICES, ids=lambda folder: folder.name)
def test_every_service_has_a_readme_and_an_image(folder: Path) -> None:
    assert (folder / "README.md").is_file()
    assert (folder / "Dockerfile").is_file()


def test_nothing_is_importable_beside_the_library() -> None:
    assert {path.name for path in (ROOT / "libs").iterdir()} - NOT_CODE == {"hadare"}


def test_there_is_no_package_under_tests() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_short_and_says_what_it_decides(module: Path) -> None:
    source = module.read_text()
    assert len(source.splitlines()) <= MAX_LINES
    assert not source.strip() or ast.get_docstring(ast.parse(source))


def wire_names() -> list[str]:
    templates = [
        value.template for value in vars(subjects).values() if isinstance(value, subjects.Topic | subjects.Endpoint)
    ]
    return sorted({*templates, *subjects.BUCKETS, subjects.WEIGHTS, subjects.CODE})


@pytest.mark.parametrize("name", wire_names())
def test_every_subject_and_bucket_is_documented(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs/reference/subjects.md").read_text()


def test_no_subject_is_documented_that_does_not_exist() -> None:
    text = (ROOT / "docs/reference/subjects.md").read_text()
    assert set(re.findall(r"^\| `((?:node|pricing|tracker)\.v1\.[^`]+)`", text, re.MULTILINE)) <= set(wire_names())


def test_no_record_lies_in_a_bucket_without_a_writer() -> None:
    records = [value for value in vars(subjects).values() if isinstance(value, subjects.Records)]
    assert {record.bucket for record in records} == set(subjects.BUCKETS)


FORBIDDEN = re.compile(
    r"/work/|/root/|/home/\w+/|extra-index-url|--index-url|"
    r"pypi\.org|pythonhosted|download\.pytorch|registry\.npmjs|deb\.debian|docker\.io/|ghcr\.io"
)


def test_no_file_names_a_path_of_a_machine_or_the_host_of_a_registry() -> None:
    texts = [path for path in tracked_files() if path != Path(__file__) and path.suffix not in (".gz", ".npz", ".png")]
    found = [(path, FORBIDDEN.search(path.read_text(errors="ignore"))) for path in texts]
    assert not [f"{path.relative_to(ROOT)}: {match.group()}" for path, match in found if match]


def test_the_repository_holds_no_large_file_and_no_secret() -> None:
    files = tracked_files()
    assert not [path for path in files if path.stat().st_size > 512 * 1024]
    assert not [path for path in files if path.suffix in (".nk", ".seed", ".pem", ".key")]


DOCKERFILES = sorted((ROOT / "services").glob("*/Dockerfile"))


def stage(service: str, name: str) -> str:
    text = (ROOT / f"services/{service}/Dockerfile").read_text()
    found = text.partition(f" AS {name}\n")[2].partition("\nFROM")[0].strip()
    assert found
    return found


def test_every_image_builds_the_wheel_by_the_same_layers() -> None:
    assert len({stage(folder.name, "wheel") for folder in SERVICES}) == 1


def test_images_with_the_same_needs_share_their_environment() -> None:
    assert len({stage(service, "environment") for service in ("gateway", "pricing", "allocator")}) == 1
    assert stage("node_agent", "environment").startswith(stage("jobtracker", "environment"))


@pytest.mark.parametrize("service", ["gateway", "pricing", "allocator"])
def test_an_image_without_torch_asks_for_none(service: str) -> None:
    extras = re.search(r"requirements\.py ([\w -]+) >", stage(service, "environment"))
    assert extras
    wanted = [line for extra in extras.group(1).split() for line in PROJECT["project"]["optional-dependencies"][extra]]
    assert not [line for line in wanted if "torch" in line]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_an_image_runs_its_service_unprivileged_with_a_health_check(dockerfile: Path) -> None:
    lines = dockerfile.read_text().splitlines()
    assert "USER hadare" in lines
    assert "STOPSIGNAL SIGTERM" in lines
    assert f'ENTRYPOINT ["python", "-m", "hadare_{dockerfile.parent.name}"]' in lines
    assert any(line.startswith("HEALTHCHECK ") for line in lines)


LEGACY = re.compile(r"^# syntax=|RUN --mount|COPY --chmod|COPY --link|<<|--start-interval", re.MULTILINE)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_an_image_builds_with_the_legacy_builder_too(dockerfile: Path) -> None:
    assert not LEGACY.search(dockerfile.read_text())
