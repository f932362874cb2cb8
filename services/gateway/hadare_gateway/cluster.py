"""The endpoints about the cluster: nodes, prices, rounds, and whether all is well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

from hadare import __version__
from hadare.machines.status import state_of
from hadare.machines.validation import nearest
from hadare.model.devices import NodeInventory, NodeState, NodeWish
from hadare.model.errors import Conflict, Rejected
from hadare.model.events import Event
from hadare.model.jobs import JobRecord
from hadare.model.leases import Lease
from hadare.model.plans import PriceCurve
from hadare.runtime.bus import Backplane
from hadare.wire import api_cluster, subjects
from hadare_gateway.pages import fitting, page
from hadare_gateway.views import Views

Discover = Callable[[], Awaitable[list[api_cluster.ServiceSeen]]]


class Cluster:
    """Answers every question about the cluster. Writes ``node_wishes``, and deletes the inventories of lost nodes."""

    def __init__(self, backplane: Backplane, views: Views, discover: Discover) -> None:
        self._bus = backplane.bus
        self._journal = backplane.journal
        self._inventories = backplane.table(subjects.NODES)
        self._wishes = backplane.table(subjects.NODE_WISHES)
        self._pages = backplane.table(subjects.ROUND_PAGES)
        self._views = views
        self._discover = discover

    async def nodes(self, question: api_cluster.Page) -> api_cluster.NodeList:
        kept, cursor = page(self._all_nodes(), lambda node: node.node, question.cursor, question.limit)
        return api_cluster.NodeList(nodes=tuple(kept), cursor=cursor)

    async def drain(self, question: api_cluster.NodeRef) -> api_cluster.NodeInfo:
        return await self._set_drain(question, drain=True)

    async def undrain(self, question: api_cluster.NodeRef) -> api_cluster.NodeInfo:
        return await self._set_drain(question, drain=False)

    async def forget(self, question: api_cluster.NodeRef) -> api_cluster.NodeInfo:
        """A lost node has no agent that writes its inventory; one that came back meanwhile wrote a new one."""
        node = question.node
        stored = await self._inventories.get(node)
        if stored is None:
            raise self._unknown(node)
        found = self._node(stored.record, self._views.wishes.get(node))
        if found.state is not NodeState.LOST:
            state = found.state.value if found.state else "new"
            raise Rejected(
                409,
                f"node '{node}' is {state}: only a lost node can be forgotten; "
                f"stop its agent, and it is lost soon (`hadare drain {node}` keeps it, without work)",
                {"node": node, "state": state},
            )
        try:
            await self._inventories.delete(node, stored.revision)
        except Conflict:
            raise Rejected(409, f"node '{node}' is back: its agent has just registered again", {"node": node}) from None
        await self._wishes.delete(node)
        event = Event(kind="node", id=node, what="forgotten", data={"reason": question.reason})
        await self._journal.append(event, f"node:{node}:forgotten:{stored.revision}")
        return found

    async def prices(self, question: api_cluster.Page) -> api_cluster.Prices:
        book = self._views.book
        cells = [_cell(curve) for curve in book.curves] if book else []
        kept, cursor = page(cells, lambda cell: f"{cell.node}:{cell.type}", question.cursor, question.limit)
        return api_cluster.Prices(round=book.round if book else -1, cells=tuple(kept), cursor=cursor)

    async def rounds(self, question: api_cluster.Page) -> api_cluster.RoundList:
        summaries = self._views.rounds.summaries()
        kept, cursor = page(summaries, lambda summary: _descending(summary.round), question.cursor, question.limit)
        return api_cluster.RoundList(head=self._views.head, rounds=tuple(kept), cursor=cursor)

    async def round(self, question: api_cluster.GetRound) -> api_cluster.RoundView:
        head = self._views.head
        number = head.round if question.round is None and head else question.round
        if number is None:
            raise Rejected(404, "there was no round yet")
        found = await self._pages.get(f"{number}.{question.page}")
        if found is None:
            part = f"page {question.page} of " if question.page else ""
            raise Rejected(404, f"there is no {part}round {number}: it was not planned, or is too old")
        stored = found.record
        current = head if head and (head.round, head.epoch) == (stored.round, stored.epoch) else None
        past = head is not None and head.round > stored.round
        return api_cluster.RoundView(
            round=stored.round,
            epoch=stored.epoch,
            page=stored.page,
            pages=stored.pages,
            state=current.state if current else "closed" if past else "planned",
            policy=current.policy if current else "",
            forks=stored.forks,
            decisions=stored.decisions,
        )

    async def status(self, _question: api_cluster.Empty) -> api_cluster.ClusterStatus:
        services = await self._discover()
        nodes = self._all_nodes()
        ready = sum(node.state is NodeState.READY for node in nodes)
        problems = [f"{service.name} does not answer" for service in services if not service.ok]
        problems += [] if ready else ["no node is ready"]
        problems += [
            f"node {node.node} is {node.state.value}: {node.reason}"
            for node in nodes
            if node.state in (NodeState.SUSPECT, NodeState.LOST, NodeState.QUARANTINED)
        ]
        return api_cluster.ClusterStatus(
            ok=all(service.ok for service in services) and ready > 0,
            services=tuple(services),
            nodes=tuple(fitting(nodes)),
            jobs=self._count_jobs(),
            round=self._views.head,
            problems=tuple(problems[:50]),
            prefix=self._bus.prefix,
            version=__version__,
        )

    def _count_jobs(self) -> dict[str, int]:
        jobs: list[JobRecord] = list(self._views.jobs.records.values())
        return dict(sorted(Counter(state_of(job, self._views.progress.get(job.job_id)).value for job in jobs).items()))

    async def _set_drain(self, question: api_cluster.NodeRef, *, drain: bool) -> api_cluster.NodeInfo:
        inventory = self._views.nodes.get(question.node)
        if inventory is None:
            raise self._unknown(question.node)
        known = self._views.wishes.get(question.node)
        pardon = (known.pardon if known else 0) + (not drain)
        wish = NodeWish(node=question.node, drain=drain, reason=question.reason, pardon=pardon)
        revision = await self._wishes.put(question.node, wish)
        what = "drain_requested" if drain else "undrain_requested"
        event = Event(kind="node", id=question.node, what=what, data={"reason": question.reason})
        await self._journal.append(event, f"node:{question.node}:{what}:{revision}")
        return self._node(inventory, wish)

    def _unknown(self, node: str) -> Rejected:
        return Rejected(404, f"there is no node '{node}'{nearest(node, self._views.nodes.records)}", {"node": node})

    def _all_nodes(self) -> list[api_cluster.NodeInfo]:
        inventories = sorted(self._views.nodes.records.items())
        return [self._node(inventory, self._views.wishes.get(name)) for name, inventory in inventories]

    def _node(self, inventory: NodeInventory, wish: NodeWish | None) -> api_cluster.NodeInfo:
        state = self._views.states.get(inventory.node)
        holders = self._holders(inventory.node)
        devices = [
            api_cluster.DeviceNow(
                index=device.index,
                type=device.type,
                memory_gb=device.memory_gb,
                healthy=device.healthy,
                emulated=device.emulated,
                reason=device.reason,
                job_id=holders[device.index].key.job_id if device.index in holders else None,
                fork=holders[device.index].key.fork if device.index in holders else None,
            )
            for device in inventory.devices
        ]
        return api_cluster.NodeInfo(
            node=inventory.node,
            state=state.state if state else None,
            reason=state.reason if state else "the allocator has not seen it yet",
            drain=wish.drain if wish else False,
            devices=tuple(devices),
            labels=inventory.labels,
            workloads=inventory.workloads,
            host=inventory.host,
            version=inventory.version,
        )

    def _holders(self, node: str) -> dict[int, Lease]:
        """The leases of the open round, by the devices that they hold."""
        head, held = self._views.head, self._views.leases.get(node)
        if head is None or held is None or head.state != "open" or held.round != head.round:
            return {}
        return {device: lease for lease in held.leases for device in lease.devices}


def _cell(curve: PriceCurve) -> api_cluster.CellPrice:
    return api_cluster.CellPrice(
        node=curve.node,
        type=curve.type,
        capacity=curve.capacity,
        taken=curve.taken,
        price=curve.price(curve.taken) if curve.taken < curve.capacity else None,
        u_min=curve.u_min,
        u_max=curve.u_max,
    )


def _descending(number: int) -> str:
    """A name that sorts later the smaller the number is."""
    return f"{2**53 - number:016d}"
