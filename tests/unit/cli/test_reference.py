"""The reference pages know every command, option, endpoint and field."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click
import pytest

from builders_cli import all_commands
from hadare.cli.main import hadare
from hadare.model.jobs import ConsolidationSpec, Constraints, JobSpec, Until
from hadare.runtime.nats_streams import EVENTS_MAX_AGE_S, LOGS_MAX_AGE_S
from hadare.wire import api

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


COMMANDS = list(all_commands(hadare))


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_the_reference_of_the_command_line_has_every_command_with_its_options(
    path: str, command: click.Command
) -> None:
    text = (REFERENCE / "cli.md").read_text()
    _, found, section = text.partition(f"\n### {path}\n")
    assert found
    section = section.split("\n### ")[0].split("\n## ")[0]
    everywhere = {"--json", "--nats", "--prefix"}
    options = {name for option in command.params for name in option.opts if name.startswith("--")} - everywhere
    assert [name for name in sorted(options) if f"`{name}" not in section] == []


def test_the_reference_of_the_message_api_has_every_endpoint_with_its_fields() -> None:
    text = (REFERENCE / "message-api.md").read_text()
    for endpoint in api.ENDPOINTS:
        name = endpoint.template.removeprefix("api.v1.")
        _, found, section = text.partition(f"\n### {name}\n")
        assert found, name
        section = section.split("\n### ")[0]
        for field in dataclasses.fields(endpoint.question):
            assert f"`{field.name}`" in section, f"{name}: {field.name}"


@pytest.mark.parametrize("message", [api.JobStatus, api.ForkNow, api.VersionInfo], ids=lambda kind: kind.__name__)
def test_the_reference_of_the_message_api_has_every_field_of_what_is_answered_about_jobs(message: type) -> None:
    text = (REFERENCE / "message-api.md").read_text()
    assert [field.name for field in dataclasses.fields(message) if f"`{field.name}`" not in text] == []


@pytest.mark.parametrize("message", [JobSpec, Constraints, Until, ConsolidationSpec], ids=lambda kind: kind.__name__)
def test_the_reference_of_the_job_file_has_every_field(message: type) -> None:
    text = (REFERENCE / "job-file.md").read_text()
    assert [field.name for field in dataclasses.fields(message) if f"`{field.name}`" not in text] == []


def test_the_retention_that_is_stated_is_the_one_that_is_set() -> None:
    text = (REFERENCE / "message-api.md").read_text()
    assert f"| events | {EVENTS_MAX_AGE_S // 86_400} days" in text
    assert f"| logs | {LOGS_MAX_AGE_S // 86_400} days" in text
