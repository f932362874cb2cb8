"""docker-compose.yml: what it promises of restarts, limits, secrets and of Compose 1.29, read without Docker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hadare.runtime.credentials import USERS_FILE, users

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if str(service["image"]).startswith("hadare/")}
LASTING = {name: service for name, service in SERVICES.items() if name not in ("credentials", "cli")}
CONTROL = ("gateway", "pricing", "allocator", "jobtracker")
NODES = [name for name in SERVICES if name.startswith("node-")]
ONLY_NEWER_COMPOSE = {
    *("gpus", "develop", "post_start", "pre_stop", "attach", "annotations", "configs"),
}


def credential_volumes(service: dict[str, Any]) -> set[str]:
    return {
        str(volume).split(":")[0] for volume in service.get("volumes", []) if str(volume).startswith("credentials-")
    }


def test_the_whole_cluster_is_there() -> None:
    assert {"nats", *CONTROL} < set(SERVICES)
    assert len(NODES) == 2
    assert len({SERVICES[node]["environment"]["HADARE_DEVICES"] for node in NODES}) == 2


@pytest.mark.parametrize("name", LASTING)
def test_a_service_starts_again_and_has_limits(name: str) -> None:
    assert LASTING[name]["restart"] == "unless-stopped"
    limits = LASTING[name]["deploy"]["resources"]["limits"]
    assert {"cpus", "memory"} <= set(limits)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_no_rights_that_it_does_not_need(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_is_pinned(name: str) -> None:
    tag = str(SERVICES[name]["image"]).partition(":")[2]
    assert tag
    assert tag != "latest"


@pytest.mark.parametrize("name", [*CONTROL, *NODES])
def test_a_service_sees_its_own_seed_alone(name: str) -> None:
    assert credential_volumes(SERVICES[name]) == {f"credentials-{name}"}
    assert f"credentials-{name}:/run/credentials:ro" in SERVICES[name]["volumes"]


def test_every_user_has_a_volume_and_nobody_else_has() -> None:
    named = [argument for argument in SERVICES["credentials"]["command"] if argument in NODES]
    assert named == NODES
    wanted = {*users("hadare", tuple(NODES)), "nats"}
    assert credential_volumes(SERVICES["credentials"]) == {f"credentials-{user}" for user in wanted}


def test_the_seeds_belong_to_the_user_that_the_images_run_with() -> None:
    owner = SERVICES["credentials"]["command"][1]
    for dockerfile in (ROOT / "services").glob("*/Dockerfile"):
        assert f"useradd --uid {owner.partition(':')[0]} " in dockerfile.read_text()


def test_only_the_gateway_declares_streams() -> None:
    declaring = {name for name, service in OURS.items() if service["environment"].get("HADARE_NATS_DECLARE") == "true"}
    assert declaring == {"gateway"}


def test_nats_keeps_what_it_acknowledged_and_is_reachable_from_this_host_alone() -> None:
    config = (ROOT / "deploy/nats/nats-server.conf").read_text()
    assert "sync_interval: always" in config
    assert f'include "credentials/{USERS_FILE}"' in config
    assert "nats-data:/data" in SERVICES["nats"]["volumes"]
    assert all(port.startswith("127.0.0.1:") for service in SERVICES.values() for port in service.get("ports", []))


def test_observability_and_tools_are_off_by_default() -> None:
    assert {name for name, service in SERVICES.items() if service.get("profiles")} == {"cli", "collector", "jaeger"}


def test_every_volume_is_declared_and_used() -> None:
    used = {
        str(volume).split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", [])
        if not str(volume).startswith((".", "/"))
    }
    assert used == set(COMPOSE["volumes"])


def test_nothing_needs_a_newer_compose_than_1_29() -> None:
    assert not {"name", "include", "version", "configs"} & set(COMPOSE)
    assert not [name for name, service in SERVICES.items() if ONLY_NEWER_COMPOSE & set(service)]
    text = (ROOT / "docker-compose.yml").read_text()
    assert ":+" not in text
    assert "start_interval" not in text


def test_the_collectors_pipelines_name_only_what_is_configured() -> None:
    collector = yaml.safe_load((ROOT / "deploy/observability/collector.yaml").read_text())
    for pipeline in collector["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= set(collector[kind])
