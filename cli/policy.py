"""The planner by the policy in force: what an administrator stored last goes before the settings."""

from collections.abc import Callable

from lockstep.config import Settings
from lockstep.control.database import ControlDatabase
from lockstep.control.leases import Lease
from lockstep.control.policies import PlannerPolicy, current_policy
from planner.options import PlannerOptions
from planner.rebalancing import Rebalancer
from planner.recovery.executing import Executor
from planner.recovery.reading import FactReader
from planner.recovery.returning import Returner
from planner.service import PlannerService

OptionsOf = Callable[[Settings], PlannerOptions]


class PolicyPlanner(PlannerService):
    """Looks at the policy before each round; what was decided or begun before a change stays as it is."""

    def __init__(
        self,
        settings: Settings,
        options_of: OptionsOf,
        control: ControlDatabase,
        reader: FactReader,
        executor: Executor | None,
        returner: Returner | None,
    ) -> None:
        options = options_of(settings)
        rebalancer = Rebalancer(control, reader, options)
        super().__init__(control, reader, options, executor, returner, rebalancer)
        self._settings, self._options_of = settings, options_of
        self._facts, self._sharing = reader, rebalancer
        self._followed: PlannerPolicy | None = None

    def run_once(self, lease: Lease, now_ns: int) -> int:
        """Do one round under the lease by the policy of this moment."""
        policy = current_policy(self._control)
        if policy != self._followed:
            self._follow(policy)
        return super().run_once(lease, now_ns)

    def _follow(self, policy: PlannerPolicy | None) -> None:
        wanted = with_policy(self._settings, policy)
        self._options = self._options_of(wanted)
        self._sharing.use(self._options)
        self._facts.use_spares(wanted.planner.spares)
        self._followed = policy


def with_policy(settings: Settings, policy: PlannerPolicy | None) -> Settings:
    """Return the settings as the policy changes them."""
    if policy is None:
        return settings
    changed = {name: getattr(policy, name) for name in PlannerPolicy.model_fields}
    return settings.model_copy(update={"planner": settings.planner.model_copy(update=changed)})
