"""Code and weights that a job file names on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders_cli import JOB, Cli
from builders_gateway import Others, a_header, a_weights_file
from hadare.model.events import Event
from hadare.model.jobs import JobSpec
from hadare.wire import bundles, subjects

WEIGHTS = a_weights_file()


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path)


def code_in(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text("A = 1\n")
    return folder


def spec_of(cli: Cli, job_id: str) -> JobSpec:
    entry = cli.others(lambda others: others.backplane.table(subjects.JOBS).get(job_id))
    assert entry is not None
    return entry.record.spec


def test_code_is_sent_from_the_folder_of_the_option(cli: Cli) -> None:
    folder = code_in(cli.folder / "src")
    job = cli.json("submit", cli.file(), "--code", "src")
    assert spec_of(cli, job["job_id"]).code == bundles.pack(folder).sha256


def test_code_in_a_job_file_is_relative_to_the_file(cli: Cli) -> None:
    folder = code_in(cli.folder / "deep" / "src")
    job = cli.json("submit", cli.file(JOB + "code: src\n", name="deep/job.yaml"))
    assert spec_of(cli, job["job_id"]).code == bundles.pack(folder).sha256


def test_a_job_file_in_its_own_folder_is_not_sent_with_the_code(cli: Cli) -> None:
    """Its `env` may hold secrets, which nobody but the job's forks should read."""
    folder = code_in(cli.folder / "src")
    without = bundles.pack(folder).sha256
    job = cli.json("submit", cli.file(JOB + "code: .\nenv: {TOKEN: secret}\n", name="src/job.yaml"))
    assert spec_of(cli, job["job_id"]).code == without
    assert bundles.pack(folder).sha256 != without


def test_a_folder_that_is_not_there_is_refused_before_any_cluster_is_asked(cli: Cli) -> None:
    result = cli("submit", cli.file(JOB + "code: nowhere\n"))
    assert result.exit_code == 2
    assert "there is no folder" in result.stderr
    assert cli.targets == []


def test_a_folder_that_cannot_be_sent_is_refused_before_any_cluster_is_asked(cli: Cli) -> None:
    (code_in(cli.folder / "src") / "link").symlink_to("/etc/passwd")
    result = cli("submit", cli.file(), "--code", "src")
    assert (result.exit_code, cli.targets) == (2, [])
    assert "link is a link" in result.stderr


def test_a_weights_file_is_sent_and_named_by_its_hash(cli: Cli) -> None:
    (cli.folder / "w.safetensors").write_bytes(WEIGHTS)
    job = cli.json("submit", cli.file(JOB + "start_from: w.safetensors\n"))
    spec = spec_of(cli, job["job_id"])
    assert spec.start_from is not None
    assert spec.start_object is not None
    assert spec.start_from == f"sha256:{spec.start_object.sha256}"


def test_a_weights_file_that_is_not_there_is_refused(cli: Cli) -> None:
    result = cli("submit", cli.file(), "--start-from", "w.safetensors")
    assert result.exit_code == 2
    assert "there is no file w.safetensors" in result.stderr


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "longer than the file"),
        (b"weights", "longer than the file"),
        (b"\xff" * 64, "longer than the file"),
        (b"\4\0\0\0\0\0\0\0nope", "not one of safetensors"),
        (b"\2\0\0\0\0\0\0\0[]", "not one of safetensors"),
        (b"\2\0\0\0\0\0\0\0{}", "no tensor"),
        (WEIGHTS[:-3], "3 bytes are missing"),
        (WEIGHTS + b"more", "4 bytes follow its last tensor"),
        (a_header('{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,"4"]}}'), "not one of safetensors"),
        (a_header('{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,null]}}'), "not one of safetensors"),
        (a_header('{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,Infinity]}}'), "not one of safetensors"),
        (a_header('{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,-4]}}'), "not one of safetensors"),
        (a_header('{"w":{"dtype":"F32","shape":[1],"data_offsets":[0]}}'), "not one of safetensors"),
        (a_header('{"w":{"shape":[1],"data_offsets":[0,4]}}'), "not one of safetensors"),
        (a_header('{"w":[]}'), "not one of safetensors"),
        (a_header("[" * 200_000), "not one of safetensors"),
    ],
)
def test_a_weights_file_that_is_damaged_is_refused_before_any_cluster_is_asked(
    cli: Cli, content: bytes, why: str
) -> None:
    (cli.folder / "w.safetensors").write_bytes(content)
    result = cli("submit", cli.file(), "--start-from", "w.safetensors")
    assert (result.exit_code, cli.targets) == (2, [])
    assert "w.safetensors is no weights file" in result.stderr
    assert why in " ".join(result.stderr.split())


def test_a_pickle_is_refused_by_its_ending(cli: Cli) -> None:
    (cli.folder / "w.pt").write_bytes(b"weights")
    assert "not a .safetensors file" in cli("submit", cli.file(), "--start-from", "w.pt").stderr


def test_every_other_fault_of_the_file_is_still_found(cli: Cli) -> None:
    code_in(cli.folder / "src")
    result = cli("submit", cli.file("workload: nonsense\ntotal_steps: 0\nbatch_size: 1\ncode: src\n"))
    assert "job.yaml has 2 faults" in result.stderr


def test_a_job_is_shown_with_its_newest_versions(cli: Cli) -> None:
    job = cli.json("submit", cli.file(JOB + "name: mine\n"))["job_id"]

    async def tell(others: Others) -> None:
        for version in (1, 2, 3):
            made = {"version": version, "steps": 10 * version, "forks": 2, "loss": 1 / version}
            judged = {"version": version, "metrics": {"accuracy": version / 4}}
            for what, data in (("consolidated", made), ("evaluated", judged)):
                event = Event(kind="job", id=job, what=what, data=data)
                await others.backplane.journal.append(event, f"{what}.{version}")

    cli.others(tell)
    shown = cli.json("job", "mine", "--history", "2")["history"]
    assert [(one["version"], one["steps"], one["metrics"]) for one in shown] == [
        (2, 20, {"accuracy": 0.5}),
        (3, 30, {"accuracy": 0.75}),
    ]
    assert "ACCURACY" in cli("job", "mine").stdout
    assert cli.json("job", "mine", "--history", "0")["history"] == []
