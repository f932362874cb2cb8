"""The commands as people and scripts see them: what is printed, where, and with which exit code."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from builders_cli import JOB, Cli, all_commands
from builders_gateway import Others, a_fork, a_page, waits
from hadare import __version__
from hadare.cli import tables
from hadare.cli.main import hadare
from hadare.model.devices import NodeState
from hadare.model.events import Event, LogLine
from hadare.model.jobs import JobState, ObjectRef
from hadare.model.plans import Decision, PriceCurve
from hadare.wire import subjects

STATUS_KEYS = {"job_id", "state", "reason", "steps", "total_steps", "version", "metrics", "eta_s"}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path)


def ended(job_id: str, state: JobState, **more: Any) -> Any:
    async def act(others: Others) -> None:
        await others.progress(job_id, state, **more)

    return act


def test_the_version_is_printed(cli: Cli) -> None:
    assert __version__ in cli("--version").output


# submit


def test_submit_prints_one_document_with_the_documented_keys(cli: Cli) -> None:
    document = cli.json("submit", cli.file())
    assert document.keys() >= STATUS_KEYS
    assert (document["created"], document["state"]) == (True, "queued")


def test_submit_with_the_same_request_id_makes_one_job(cli: Cli) -> None:
    first = cli.json("submit", cli.file(), "--request-id", "r")
    second = cli.json("submit", cli.file(), "--request-id", "r")
    assert (first["job_id"], first["created"], second["created"]) == (second["job_id"], True, False)


def test_settings_are_put_over_the_file(cli: Cli) -> None:
    job = cli.json("submit", cli.file(), "--set", "total_steps=7", "--set", "config.lr=1e-3", "--name", "mine")
    record = cli.others(lambda others: others.backplane.table(subjects.JOBS).get(job["job_id"]))
    assert record is not None
    assert (record.record.spec.total_steps, record.record.spec.config) == (7, {"lr": 0.001})
    assert record.record.name == "mine"


def test_a_faulty_file_is_refused_with_every_fault_and_its_line(cli: Cli) -> None:
    result = cli("submit", cli.file("workload: nonsense\ntotal_stepz: 5\nbatch_size: 0\n"))
    assert result.exit_code == 2
    assert "job.yaml has 4 faults" in result.stderr
    assert "line 2: total_stepz: there is no such field; did you mean 'total_steps'?" in result.stderr
    assert "line 3: batch_size: expected int >= 1" in result.stderr
    assert result.stdout == ""


def test_a_faulty_file_is_refused_before_any_cluster_is_asked(cli: Cli) -> None:
    cli("submit", cli.file("workload: nonsense\n"))
    assert cli.targets == []


def test_a_refusal_is_a_document_too_if_one_is_asked_for(cli: Cli) -> None:
    error = cli.json("submit", cli.file("workload: nonsense\ntotal_steps: 1\nbatch_size: 1\n"), code=2)["error"]
    assert error["exit_code"] == 2
    assert error["details"]["faults"] == [
        {
            "path": "workload",
            "message": "expected pkg.module:Class or pkg.module:function, importable on the node agents",
            "line": 1,
        }
    ]


def test_a_taken_name_is_a_conflict(cli: Cli) -> None:
    cli("submit", cli.file(), "--name", "mine")
    result = cli("submit", cli.file(), "--name", "mine")
    assert result.exit_code == 4
    assert "the name 'mine' is taken" in result.stderr


def test_a_file_that_does_not_exist_is_a_wrong_argument(cli: Cli) -> None:
    result = cli("submit", "nowhere.yaml")
    assert result.exit_code == 2
    assert "there is no file nowhere.yaml" in result.stderr


@pytest.mark.parametrize(("state", "code"), [(JobState.COMPLETED, 0), (JobState.FAILED, 1), (JobState.CANCELLED, 1)])
def test_waiting_exits_by_the_jobs_end(cli: Cli, state: JobState, code: int) -> None:
    submitted = cli.json("submit", cli.file(), "--request-id", "r")
    cli.others(ended(submitted["job_id"], state, steps=100))
    document = cli.json("submit", cli.file(), "--request-id", "r", "--wait", code=code)
    assert (document["state"], document["steps"]) == (state, 100)


def test_waiting_too_long_has_an_exit_code_of_its_own(cli: Cli) -> None:
    assert cli("submit", cli.file(), "--wait", "--timeout", "0.05").exit_code == 6


# job, jobs, and what can be wanted


def test_a_job_is_named_by_name_or_by_identifier(cli: Cli) -> None:
    job = cli.json("submit", cli.file(), "--name", "mine")
    assert cli.json("job", "mine")["job_id"] == cli.json("job", job["job_id"])["job_id"] == job["job_id"]


def test_an_unknown_job_has_an_exit_code_of_its_own(cli: Cli) -> None:
    result = cli("job", "nobody")
    assert result.exit_code == 3
    assert result.stderr == "error: there is no job 'nobody'\n"


def test_jobs_are_listed_with_their_reasons(cli: Cli) -> None:
    cli("submit", cli.file(), "--name", "mine")
    assert [job["name"] for job in cli.json("jobs")["jobs"]] == ["mine"]
    output = cli("jobs").stdout
    assert "mine" in output
    assert "the job tracker has not taken it up yet" in output


@pytest.mark.parametrize(
    ("reason", "told"), [("one\ntwo\t three ", "one two three"), ("x" * 4096, "x" * 159 + "…"), ("x" * 160, "x" * 160)]
)
def test_a_list_tells_a_reason_in_one_line(reason: str, told: str) -> None:
    assert tables.brief(reason) == told


def test_jobs_of_one_state_only(cli: Cli) -> None:
    cli("submit", cli.file())
    assert cli.json("jobs", "--state", "completed") == {"jobs": []}


@pytest.mark.parametrize(("command", "desired"), [("cancel", "cancelled"), ("pause", "paused"), ("resume", "run")])
def test_what_is_wanted_of_a_job_is_stored(cli: Cli, command: str, desired: str) -> None:
    cli("submit", cli.file(), "--name", "mine")
    assert cli.json(command, "mine")["desired"] == desired


def test_resuming_a_cancelled_job_is_a_conflict(cli: Cli) -> None:
    cli("submit", cli.file(), "--name", "mine")
    cli("cancel", "mine")
    assert cli("resume", "mine").exit_code == 4


def test_deleting_an_open_job_is_a_conflict_that_says_what_to_do(cli: Cli) -> None:
    cli("submit", cli.file(), "--name", "mine")
    result = cli("delete", "mine")
    assert result.exit_code == 4
    assert "cancel it first" in result.stderr


def test_an_ended_job_is_deleted(cli: Cli) -> None:
    job = cli.json("submit", cli.file(), "--name", "mine")
    cli.others(ended(job["job_id"], JobState.COMPLETED))
    assert cli.json("delete", "mine") == {"job_id": job["job_id"], "name": "mine"}
    assert cli("job", "mine").exit_code == 3


def test_one_job_is_shown_with_why_it_waits(cli: Cli) -> None:
    job = cli.json("submit", cli.file(), "--name", "mine")

    async def plan(others: Others) -> None:
        await others.progress(job["job_id"], JobState.WAITING)
        await others.plan(3, a_page(3, decisions=(waits(job["job_id"]),)))

    cli.others(plan)
    assert "all devices are taken; position 2; behind other" in cli("job", "mine").stdout


# watch and logs


def test_a_watch_tells_what_happened_and_ends_with_the_job(cli: Cli) -> None:
    job = cli.json("submit", cli.file(), "--name", "mine")

    async def finish(others: Others) -> None:
        data = {"steps": 100, "metrics": {"acc": 0.98765432}, "rejected": {}}
        event = Event(kind="job", id=job["job_id"], what="completed", data=data)
        await others.backplane.journal.append(event, "1")
        await others.progress(job["job_id"], JobState.COMPLETED, steps=100)

    cli.others(finish)
    result = cli("watch", "mine")
    assert result.exit_code == 0
    assert "completed          steps 100, metrics (acc 0.9877)\n" in result.stdout
    document = cli.json("watch", "mine")
    assert [event["event"]["what"] for event in document["events"]] == ["submitted", "completed"]
    assert document["state"] == "completed"


def test_a_watch_of_a_failed_job_exits_with_1(cli: Cli) -> None:
    job = cli.json("submit", cli.file(), "--name", "mine")

    async def fail(others: Others) -> None:
        await others.backplane.journal.append(Event(kind="job", id=job["job_id"], what="failed"), "1")
        await others.progress(job["job_id"], JobState.FAILED)

    cli.others(fail)
    assert cli("watch", "mine").exit_code == 1


def test_logs_say_which_fork_printed_what(cli: Cli) -> None:
    job = cli.json("submit", cli.file(), "--name", "mine")

    async def log(others: Others) -> None:
        line = LogLine(job_id=job["job_id"], round=2, fork=1, node="n1", text="epoch 1\nepoch 2\n")
        await others.backplane.journal.log(line)

    cli.others(log)
    assert cli("logs", "mine").stdout == "[round 2 fork 1 n1] epoch 1\n[round 2 fork 1 n1] epoch 2\n"
    assert cli("logs", "mine", "--plain").stdout == "epoch 1\nepoch 2\n"
    assert cli.json("logs", "mine")["lines"][0]["text"] == "epoch 1\nepoch 2\n"


def test_logs_are_followed_until_the_job_has_ended(cli: Cli) -> None:
    job = cli.json("submit", cli.file(), "--name", "mine")
    cli.others(ended(job["job_id"], JobState.COMPLETED))
    assert cli("logs", "-f", "mine").exit_code == 0


# The cluster


def test_status_exits_with_1_and_says_why_if_all_is_not_well(cli: Cli) -> None:
    result = cli("status")
    assert result.exit_code == 1
    assert "problem: no node is ready" in result.stdout


def test_status_prints_the_documented_keys(cli: Cli) -> None:
    cli.others(lambda others: others.node("n1", "V100"))
    document = cli.json("status")
    assert document.keys() >= {"nats_url", "http_url", "services", "nodes", "ok"}
    assert (document["http_url"], document["ok"]) == (None, True)


def test_nodes_are_listed_with_the_names_of_the_jobs_on_their_devices(cli: Cli) -> None:
    job = cli.json("submit", cli.file(), "--name", "mine")

    async def place(others: Others) -> None:
        await others.node("n1", "V100", "T4")
        await others.plan(3)
        await others.lease(job["job_id"], round_no=3, device=1)

    cli.others(place)
    lines = cli("nodes").stdout.splitlines()
    assert "V100/0" in lines[1]
    assert "mine" not in lines[1]
    assert "T4/1" in lines[2]
    assert "mine, fork 0" in lines[2]


def test_status_names_the_jobs_on_the_devices(cli: Cli) -> None:
    job = cli.json("submit", cli.file(), "--name", "mine")

    async def place(others: Others) -> None:
        await others.node("n1", "V100")
        await others.plan(3)
        await others.lease(job["job_id"], round_no=3, device=0)

    cli.others(place)
    assert "mine, fork 0" in cli("status").stdout


def test_a_node_is_drained_and_undrained(cli: Cli) -> None:
    cli.others(lambda others: others.node("n1", "V100"))
    assert cli.json("drain", "n1")["drain"] is True
    assert cli.json("undrain", "n1")["drain"] is False
    assert cli("drain", "n9").exit_code == 3


def test_a_lost_node_is_forgotten_and_one_that_works_is_not(cli: Cli) -> None:
    cli.others(lambda others: others.node("n1", "V100", state=NodeState.LOST))
    cli.others(lambda others: others.node("n2", "V100"))
    assert cli.json("forget", "n1")["node"] == "n1"
    result = cli("forget", "n2")
    assert result.exit_code == 4
    assert "node 'n2' is ready: only a lost node can be forgotten" in result.stderr


def test_prices_are_shown_per_node_and_type(cli: Cli) -> None:
    curve = PriceCurve(node="n1", type="V100", capacity=1, u_min=1.0, u_max=9.0, taken=1)
    cli.others(lambda others: others.prices(2, curve))
    assert cli.json("prices")["cells"][0]["price"] is None
    assert "all taken" in cli("prices").stdout


def test_rounds_are_listed_and_one_is_shown_whole(cli: Cli) -> None:
    async def plan(others: Others) -> None:
        decisions = (Decision(job_id="a", code="chosen"), waits("b"))
        await others.plan(4, a_page(4, forks=(a_fork("a"),), decisions=decisions))

    cli.others(plan)
    assert [one["round"] for one in cli.json("rounds")["rounds"]] == [4]
    shown = cli("rounds", "4").stdout
    assert "1 V100 on n1" in shown
    assert "waiting_for_capacity" in shown
    missing = cli("rounds", "5")
    assert missing.exit_code == 3
    assert "there is no round 5: it was" in missing.stderr


def test_a_round_names_the_jobs_that_still_exist(cli: Cli) -> None:
    job = cli.json("submit", cli.file(), "--name", "mine")["job_id"]

    async def plan(others: Others) -> None:
        decisions = (Decision(job_id=job, code="chosen"), replace(waits("gone"), blockers=(job,)))
        await others.plan(4, a_page(4, forks=(a_fork(job),), decisions=decisions))

    cli.others(plan)
    shown = cli("rounds", "4").stdout
    assert job not in shown
    assert shown.count("mine") == 3
    assert "gone" in shown


# Weights


def test_weights_are_listed_and_fetched(cli: Cli) -> None:
    job = cli.json("submit", cli.file(), "--name", "mine")
    content = b"the weights"

    async def store(others: Others) -> ObjectRef:
        path = cli.folder / "source"
        path.write_bytes(content)
        ref = await others.backplane.objects(subjects.WEIGHTS).put(path, "label")
        await others.version(job["job_id"], 2, ref, metrics={"acc": 0.5})
        await others.progress(job["job_id"], JobState.RUNNING, version=2)
        return ref

    cli.others(store)
    assert [one["version"] for one in cli.json("weights", "list", "mine")["versions"]] == [2]
    document = cli.json("weights", "get", "mine")
    assert document["path"] == "mine-v2.safetensors"
    assert document["sha256"] == hashlib.sha256(content).hexdigest()
    assert (cli.folder / "mine-v2.safetensors").read_bytes() == content
    assert cli("weights", "get", "mine", "-o", "mine.bin").exit_code == 0
    assert sorted(path.name for path in cli.folder.iterdir()) == [
        "job.yaml",
        "mine-v2.safetensors",
        "mine.bin",
        "source",
    ]


def test_fetching_weights_that_do_not_exist_leaves_no_file(cli: Cli) -> None:
    cli("submit", cli.file(), "--name", "mine")
    assert cli("weights", "get", "mine").exit_code == 3
    assert [path.name for path in cli.folder.iterdir()] == ["job.yaml"]


# Which cluster


def test_without_any_cluster_the_message_says_how_to_get_one(cli: Cli) -> None:
    result = cli("jobs", nats=None)
    assert result.exit_code == 5
    assert "hadare up" in result.stderr


def test_the_cluster_of_a_directory_above_is_found(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (cli.folder / ".hadare").mkdir()
    (cli.folder / ".hadare" / "cluster.json").write_text(json.dumps({"nats_url": "nats://here:1", "prefix": "mine"}))
    inner = cli.folder / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    cli("jobs", nats=None)
    assert [(target.nats_url, target.prefix) for target in cli.targets] == [("nats://here:1", "mine")]


def test_a_cluster_of_this_machine_that_is_down_is_said_to_be_down(cli: Cli) -> None:
    (cli.folder / ".hadare").mkdir()
    (cli.folder / ".hadare" / "cluster.json").write_text(json.dumps({"nats_url": "nats://here:1"}))
    result = CliRunner().invoke(hadare, ["jobs"], env={"HADARE_NATS_URL": None})
    assert result.exit_code == 5
    assert "is not running; `hadare up` resumes it" in result.stderr


def test_an_option_wins_over_the_directory(cli: Cli) -> None:
    (cli.folder / ".hadare").mkdir()
    (cli.folder / ".hadare" / "cluster.json").write_text(json.dumps({"nats_url": "nats://here:1"}))
    cli("jobs", "--nats", "nats://there:2", "--prefix", "p", nats=None)
    assert [(target.nats_url, target.prefix) for target in cli.targets] == [("nats://there:2", "p")]


def test_a_damaged_cluster_file_is_named(cli: Cli) -> None:
    (cli.folder / ".hadare").mkdir()
    (cli.folder / ".hadare" / "cluster.json").write_text("{")
    result = cli("jobs", nats=None)
    assert result.exit_code == 5
    assert "cluster.json is damaged" in result.stderr


@pytest.mark.parametrize(("line", "meant"), [("submt", "'submit'"), ("bench ronud", "'round'")])
def test_a_command_that_is_nearly_right_gets_a_suggestion_though_none_is_loaded_yet(line: str, meant: str) -> None:
    command = [sys.executable, "-c", "from hadare.cli.main import main; main()", *line.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert meant in done.stderr


def test_every_command_says_what_it_does_and_takes_json(cli: Cli) -> None:
    commands = dict(all_commands(hadare))
    assert all(command.help for command in commands.values())
    without = [path for path, c in commands.items() if not any("--json" in option.opts for option in c.params)]
    assert without == ["hadare trace make"]  # which prints the trace itself


def test_a_command_does_not_wait_for_the_libraries_of_others() -> None:
    program = "import sys; from hadare.cli.main import hadare as h; h.main(['jobs', '--help'], standalone_mode=False)"
    heavy = "print([name for name in ('scipy', 'torch', 'matplotlib', 'pandas') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", f"{program}\n{heavy}"], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_the_demonstration_runs_with_the_options_given(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from hadare.local import commands
    from hadare.local.options import DemoOptions

    seen: list[DemoOptions] = []

    def demo(options: DemoOptions) -> int:
        seen.append(options)
        return 1

    monkeypatch.setattr(commands, "demo", demo)
    assert cli("demo", "--json", "report.json", "--plain").exit_code == 1
    assert seen == [DemoOptions(json_file=Path("report.json"), plain=True)]


def test_a_local_cluster_starts_with_the_options_given(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from hadare.local import commands
    from hadare.local.options import UpOptions

    seen: list[UpOptions] = []

    def up(options: UpOptions) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(commands, "up", up)
    assert cli("up", "--dir", "d", "--cluster", "1x1:T4", "--round", "2", "--detach", "--json").exit_code == 0
    assert seen == [UpOptions(directory=Path("d"), cluster="1x1:T4", round_s=2.0, detach=True, json=True)]


def test_a_job_file_may_be_json(cli: Cli) -> None:
    text = json.dumps({"workload": "a.b:C", "total_steps": 1, "batch_size": 1})
    assert cli.json("submit", cli.file(text, "job.json"))["total_steps"] == 1


def test_the_job_file_of_these_tests_is_right(cli: Cli) -> None:
    assert cli("submit", cli.file(JOB)).exit_code == 0


@pytest.mark.parametrize("line", [("jobs", "--state", "done"), ("jobs", "--stat"), ("job",), ("joobs",)])
def test_a_line_that_cannot_be_parsed_is_one_json_document_too(cli: Cli, line: tuple[str, ...]) -> None:
    error = cli.json(*line, code=2)["error"]
    assert error["exit_code"] == 2
    assert error["message"]
