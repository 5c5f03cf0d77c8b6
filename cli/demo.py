"""A simulated cluster with a fault, sent through real collectors over real HTTP."""

from datetime import UTC, datetime

from collector.agent import CollectorAgent
from collector.gateway_client import GatewayClient
from collector.outbox import MemoryOutbox
from collector.sources.simulated import SimulatedCluster, SimulatedSource
from lockstep.clock import NS_PER_S, Clock
from lockstep.config import Settings
from lockstep.control.database import ControlDatabase
from lockstep.control.tokens import create_token, list_tokens, revoke_token
from lockstep.sim.simulation import Simulation
from lockstep.sim.story import Story
from lockstep.sim.telemetry import Identity, SimulatedTelemetry

_TOKEN_NAME = "demo"  # noqa: S105  # the name of tokens, not one of them
_SEED = 7  # any will do: the fault is found with each


class Demo:
    """The collectors of a story's hosts; `start` begins the story, `close` ends it."""

    def __init__(self, story: Story, settings: Settings, control: ControlDatabase, clock: Clock) -> None:
        self._story = story
        self._settings = settings
        self._control = control
        self._clock = clock
        self._agents: list[CollectorAgent] = []

    def start(self) -> None:
        start_ns = self._clock.now_ns()
        identity = Identity(job=f"demo-{_compact(start_ns)}", start_ns=start_ns)
        cluster = SimulatedCluster(SimulatedTelemetry(Simulation(self._story, _SEED), identity))
        self._agents = [self._agent(cluster, host) for host in cluster.hosts]
        for agent in self._agents:
            agent.start()

    def close(self) -> None:
        for agent in self._agents:
            agent.close()
        for token in list_tokens(self._control):
            if token.name == _TOKEN_NAME and token.revoked_ns is None:
                revoke_token(self._control, token.id, self._clock.now_ns(), who="demo", why="the demo ended")

    def _agent(self, cluster: SimulatedCluster, host: str) -> CollectorAgent:
        token = create_token(
            self._control, scope="ingest", host=host, name=_TOKEN_NAME, now_ns=self._clock.now_ns(), who="demo"
        )
        return CollectorAgent(
            host=host,
            sources=[SimulatedSource(cluster, host)],
            outbox=MemoryOutbox(self._settings.collector.buffer_mb << 20),
            destination=GatewayClient(f"http://{self._settings.api.listen}", token, host),
            clock=self._clock,
        )


def _compact(moment_ns: int) -> str:
    return datetime.fromtimestamp(moment_ns // NS_PER_S, UTC).strftime("%Y%m%dT%H%M%S")
