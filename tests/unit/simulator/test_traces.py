"""Traces in every form, and how bad rows are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from hadare.model.errors import Rejected
from hadare.simulator.traces import SHIPPED, read_trace

OURS = "job,arrival_s,model,batch_size,gang,total_steps\n"


def written(folder: Path, text: str, name: str = "trace.csv") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("name", "jobs"), [("static_480", 480), ("poisson_120", 120), ("tiresias_60", 60), ("gavel_physical", 287)]
)
def test_the_shipped_traces_are_read_whole(name: str, jobs: int) -> None:
    assert len(read_trace(name)) == jobs


def test_every_shipped_trace_is_tested_above() -> None:
    assert set(SHIPPED) == {"static_480", "poisson_120", "tiresias_60", "gavel_physical"}


def test_our_own_form_as_csv(tmp_path: Path) -> None:
    (row,) = read_trace(written(tmp_path, OURS + "My Job,5,LM,20,2,1000\n"))
    assert (row.job_id, row.arrival_s, row.model, row.batch_size, row.gang, row.total_steps) == (
        *("my-job", 5.0, "LM"),
        *(20, 2, 1000),
    )


def test_our_own_form_as_json(tmp_path: Path) -> None:
    text = '{"jobs": [{"job": "a", "arrival_s": 1, "model": "LM", "batch_size": 20, "total_steps": 9, "priority": 2}]}'
    (row,) = read_trace(written(tmp_path, text, "trace.json"))
    assert (row.job_id, row.gang, row.priority) == ("a", 1, 2.0)


def test_the_project_traces_keep_what_they_say() -> None:
    row = read_trace("static_480")[1]
    assert (row.model, row.batch_size, row.gang, row.total_steps) == ("Transformer", 16, 8, 3241373)


def test_one_trace_of_a_file_with_several() -> None:
    rows = read_trace("gavel_physical#small_test")
    assert len(rows) == 20
    assert rows[0].job_id.startswith("job-")


def test_jobs_of_several_traces_in_a_file_have_names_of_their_own() -> None:
    assert read_trace("gavel_physical")[0].job_id.startswith("artifact-evaluation-")


def test_philly_jobs_get_the_size_class_of_their_gpu_hours(tmp_path: Path) -> None:
    text = "job,submit_s,duration_s,num_gpus,gpu_hours,vc\n1,0,10,1,0.5,x\n2,1,10,1,5,x\n3,2,10,1,99,x\n"
    assert [row.model for row in read_trace(written(tmp_path, text))] == ["ResNet-18", "CycleGAN", "ResNet-50"]


def test_tiresias_jobs_take_their_duration_on_all_their_devices() -> None:
    row = read_trace("tiresias_60")[1]
    assert row.gpu_hours == pytest.approx(147 * 8 / 3600)


def test_jobs_come_in_the_order_of_their_arrival(tmp_path: Path) -> None:
    text = OURS + "b,9,LM,20,1,10\na,3,LM,20,1,10\n"
    assert [row.job_id for row in read_trace(written(tmp_path, text))] == ["a", "b"]


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ("a,x,LM,20,1,10", r"line 2, column 2 'arrival_s'.*'x'"),
        ("a,-1,LM,20,1,10", r"line 2, column 2 'arrival_s'"),
        ("a,0,,20,1,10", r"line 2, column 3 'model'.*empty"),
        ("a,0,LM,2.5,1,10", r"line 2, column 4 'batch_size'.*whole"),
        ("a,0,LM,20,0,10", r"line 2, column 5 'gang'"),
        ("a,0,LM,20,1,0", r"line 2, column 6 'total_steps'"),
        ("a,0,LM,20,1,nan", r"line 2, column 6 'total_steps'"),
        ("a,0,LM,20,1", r"line 2: 5 columns, the header has 6"),
        ("a,0,LM,20,1,9\na,1,LM,20,1,9", r"line 3: the job a is there already, at .*line 2"),
    ],
)
def test_a_bad_row_is_refused_with_its_line_and_column(tmp_path: Path, row: str, place: str) -> None:
    with pytest.raises(Rejected, match=place):
        read_trace(written(tmp_path, OURS + row + "\n"))


def test_a_bad_field_of_json_is_refused_with_its_path(tmp_path: Path) -> None:
    text = '{"jobs": [{"job": "a", "arrival_s": [], "model": "LM", "batch_size": 20, "total_steps": 9}]}'
    with pytest.raises(Rejected, match=r"\$\.jobs\[0\], column 'arrival_s'"):
        read_trace(written(tmp_path, text, "trace.json"))


def test_broken_json_is_refused_with_line_and_column(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="line 2, column"):
        read_trace(written(tmp_path, '{"jobs":\n [}', "trace.json"))


def test_an_unknown_form_names_what_the_nearest_lacks(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="lacks the columns total_steps"):
        read_trace(written(tmp_path, "job,arrival_s,model,batch_size\na,1,LM,20\n"))


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="no job"):
        read_trace(written(tmp_path, OURS))


def test_a_name_that_is_no_file_says_which_traces_there_are() -> None:
    with pytest.raises(Rejected, match="static_480"):
        read_trace("no-such-trace")
