from xml.etree import ElementTree

from builders_local import a_lease_end
from hadare.local.history import trainings
from hadare.local.timeline import Mark, Timeline, render

TIMELINE = Timeline(
    began=100.0,
    ended=120.0,
    devices=[("n1", 0, "V100"), ("n2", 0, "T4")],
    trainings=trainings([a_lease_end(110.0), a_lease_end(118.0, node="n2")]),
    rounds=[Mark(at=105.0, label="1"), Mark(at=500.0, label="late")],
    versions=[Mark(at=111.0, label="v1 <of 3 forks>", job_id="j1")],
    names={"j1": "digits & co"},
)


def picture() -> ElementTree.Element:
    page = render(TIMELINE, "a run", {"TTD": "20 s"})
    return ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])


def test_there_is_one_bar_for_each_training() -> None:
    assert len(picture().findall("rect")) == 2


def test_bars_lie_in_proportion_to_time() -> None:
    first, second = picture().findall("rect")
    assert float(second.attrib["x"]) > float(first.attrib["x"])
    assert float(first.attrib["width"]) == float(second.attrib["width"])
    assert abs(float(first.attrib["width"]) - (1100 - 150 - 20) * 4 / 20) < 0.2


def test_versions_are_dots_and_rounds_within_the_run_are_lines() -> None:
    assert len(picture().findall("circle")) == 1
    assert len(picture().findall("line")) == 1


def test_names_are_escaped() -> None:
    page = render(TIMELINE, "<title>", {})
    assert "digits &amp; co" in page
    assert "<h1>&lt;title&gt;</h1>" in page


def test_the_page_loads_nothing_from_elsewhere() -> None:
    page = render(TIMELINE, "a run", {})
    assert "http" not in page
    assert "<script" not in page
