"""Puts an agent together from its configuration, and sees it through to its end."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

import structlog

import hadare
from hadare.model.devices import Device
from hadare.runtime.bus import Backplane
from hadare.runtime.nats_connection import connect_nats
from hadare.training.workloads import BUILTIN
from hadare.wire.subjects import CODE, WEIGHTS
from hadare_node_agent.code import CodeCache
from hadare_node_agent.config import NodeAgentConfig
from hadare_node_agent.devices import Emulation, Probe, find_probe
from hadare_node_agent.gangs import reserve, taken
from hadare_node_agent.heartbeat import HeartThread
from hadare_node_agent.leftovers import WorkDirectory
from hadare_node_agent.place import Place
from hadare_node_agent.results import ResultStore
from hadare_node_agent.service import Adapters, AgentIdentity, NodeAgent
from hadare_node_agent.trainer import ForkSettings, ForkTrainer
from hadare_node_agent.weights import WeightsCache

log = structlog.get_logger("hadare.node_agent")


async def main(backplane: Backplane, config: NodeAgentConfig) -> None:
    """Runs the agent; on cancellation its forks hand back what they have, and it ends."""
    with WorkDirectory(config.directory(), config.node) as directory, ExitStack() as doors:
        leftovers = await asyncio.to_thread(directory.clear)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        probe = await find_probe(config.device_groups(), config.gpu_free_gb, visible)
        devices, stuck = _offered(await probe.devices(), leftovers)
        log.info("devices", found=[f"{device.index}:{device.type}" for device in devices], stuck=leftovers)
        agent = _agent(backplane, config, directory, probe, devices, stuck, _gang_ports(config, devices, doors))
        await _live(agent, config.drain_s)


async def _live(agent: NodeAgent, drain_s: float) -> None:
    running = asyncio.create_task(agent.run())
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        if agent.started:
            agent.drain(drain_s)
        else:
            running.cancel()
        await asyncio.gather(running, return_exceptions=not agent.started)


def _offered(found: tuple[Device, ...], leftovers: list[str]) -> tuple[tuple[Device, ...], Mapping[int, str]]:
    """If an earlier process will not end, it may hold any of the devices: none is offered before it is gone."""
    if not leftovers:
        return found, {}
    reason = f"a process of an earlier agent could not be ended: {leftovers[0]}"
    return (
        tuple(replace(device, healthy=False, reason=reason) for device in found),
        {device.index: leftovers[0] for device in found},
    )


def _gang_ports(config: NodeAgentConfig, devices: tuple[Device, ...], doors: ExitStack) -> tuple[int, ...]:
    configured = config.ports()
    if others := taken(doors, configured):
        log.warning("gangs cannot meet at ports that another program has", ports=others)
    if configured and len(configured) < len(devices):
        log.warning("gangs cannot begin on every device", devices=len(devices), gang_ports=config.gang_ports)
    return configured or tuple(reserve(doors) for _ in devices)


def _agent(
    backplane: Backplane,
    config: NodeAgentConfig,
    directory: WorkDirectory,
    probe: Probe,
    devices: tuple[Device, ...],
    stuck: Mapping[int, str],
    gang_ports: tuple[int, ...],
) -> NodeAgent:
    incarnation = secrets.token_hex(6)
    workloads = (*(BUILTIN if config.builtin_workloads else ()), *config.workload_names())
    trainer = ForkTrainer(
        ForkSettings(
            prefix=directory.marker_prefix(incarnation),
            scratch=directory.scratch,
            workloads=workloads,
            threads=config.threads,
            bounds=config.bounds(),
        ),
        devices,
        probe,
        Emulation(base_rate=config.base_rate, workloads=config.workload_rates()),
        Place(
            CodeCache(backplane.objects(CODE), directory.code, config.transfer_patience_s),
            config.label_map(),
            str(config.python or ""),
        ),
        stuck,
    )
    weights = WeightsCache(
        backplane.objects(WEIGHTS),
        directory.weights,
        int(config.cache_gb * 2**30),
        config.transfer_patience_s,
        sent=backplane.objects(CODE),
    )
    heart = HeartThread(
        lambda: connect_nats(replace(config.nats(f"{config.node}-heart"), declare=False)),
        config.heartbeat_s,
        config.loop_patience_s,
    )
    identity = AgentIdentity(
        node=config.node,
        incarnation=incarnation,
        labels=config.label_map(),
        host=socket.gethostname(),
        version=hadare.__version__,
        gang_address=config.gang_address,
        gang_ports=gang_ports,
    )
    adapters = Adapters(
        backplane=backplane,
        trainer=trainer,
        weights=weights,
        results=ResultStore(directory.results),
        probe=probe,
        heart=heart,
    )
    return NodeAgent(identity, adapters, devices, config.limits(), config.health_s)
