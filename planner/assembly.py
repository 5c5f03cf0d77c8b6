"""Puts the recovery planner together as the settings say, and by the policy in force."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lockstep.errors import BadInput
from lockstep.sections import JobHints, PlannerSettings
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import list_executions
from lockstep.state.fabric import find_enforced_share
from lockstep.state.leases import Lease
from lockstep.state.policies import PlannerPolicy, current_policy
from lockstep.store.store import Store
from lockstep.topology import Topology
from planner.allocation.calibration import PaceReader
from planner.allocation.throughput import Transformer
from planner.checkpoints.choose import CheckpointFolders
from planner.checkpoints.convert import Converter
from planner.context import ClusterFacts, Layout
from planner.controllers.in_job import InJobController, InJobOptions
from planner.controllers.kubernetes import KubernetesController, KubernetesOptions
from planner.controllers.kubernetes_api import connect
from planner.controllers.nvrx import NvrxController, NvrxOptions
from planner.controllers.protocol import EVERY_ACT, Controller, InJob, OwnSpelling
from planner.controllers.site import CommandController, CommandOptions, WebhookController, WebhookOptions
from planner.controllers.slurm import SlurmController
from planner.controllers.slurm_commands import SlurmOptions
from planner.controllers.torchrun import TorchrunController, TorchrunOptions
from planner.decide import PlannerOptions
from planner.execute import Executor
from planner.node_return import CommandTester, Returner
from planner.rebalance import Rebalancer
from planner.service import PlannerService
from planner.snapshot import EvidenceReader, FactReader, JobHint
from planner.steps import find_unloadable, names_of

_RECENT = 200  # executions by which the earlier names of a job are known


class PolicyPlanner(PlannerService):
    """Looks at the policy before each round; what was decided or begun before a change stays as it is."""

    def __init__(
        self,
        settings: PlannerSettings,
        control: ControlDatabase,
        reader: FactReader,
        executor: Executor | None,
        returner: Returner | None,
    ) -> None:
        options = PlannerOptions(settings)
        rebalancer = Rebalancer(control, reader, options)
        super().__init__(control, reader, options, executor, returner, rebalancer)
        self._settings, self._facts, self._sharing = settings, reader, rebalancer
        self._followed: PlannerPolicy | None = None

    def run_once(self, lease: Lease, now_ns: int) -> int:
        """Do one round under the lease by the policy of this moment."""
        policy = current_policy(self._control)
        if policy != self._followed:
            self._followed = policy
            self._options = PlannerOptions(with_policy(self._settings, policy))
            self._sharing.use(self._options)
            self._facts.use_spares(self._options.settings.spares)
        return super().run_once(lease, now_ns)


def with_policy(settings: PlannerSettings, policy: PlannerPolicy | None) -> PlannerSettings:
    """Return the settings as the policy changes them."""
    changed = {name: getattr(policy, name) for name in PlannerPolicy.model_fields} if policy else {}
    return settings.model_copy(update=changed)


def make_planner(
    settings: PlannerSettings, store: Store | None, control: ControlDatabase, topology: Topology | None
) -> PlannerService:
    """Return the planner; without a controller it decides and carries nothing out."""
    controller = controller_of(settings)
    cluster = ClusterFacts(
        spares=settings.spares,
        can_reroute=settings.paths and topology is not None and topology.routing == "ecmp",
        can_restart=controller is not None,
        controller=controller.name if controller else "",
        acts=controller.acts if controller else EVERY_ACT,
        restarts_whole_job=controller is None or controller.restarts_whole_job,
    )
    hints = {name: _hint(hint) for name, hint in settings.jobs.items()}
    reader = FactReader(
        store,
        controller,
        open_folders(settings, control),
        topology,
        cluster,
        hints,
        PaceReader(store, control),
        EvidenceReader(store, control).read,
        lambda job: names_of(job, list_executions(control, limit=_RECENT)),
        lambda: find_enforced_share(control),
    )
    if controller is None:
        return PolicyPlanner(settings, control, reader, None, None)
    executor = Executor(control, controller, converter=Converter(settings.convert_timeout_s))
    tester = CommandTester(settings.test_command, settings.test_timeout_s) if settings.test_command else None
    returner = Returner(control, controller, tester, settings.test_after_s)
    return PolicyPlanner(settings, control, reader, executor, returner)


def open_folders(settings: PlannerSettings, control: ControlDatabase | None = None) -> CheckpointFolders | None:
    """Return what looks at checkpoints; None where nobody said where they are."""
    if not settings.checkpoints:
        return None
    return CheckpointFolders(
        settings.checkpoints,
        settings.read_mb_per_s,
        settings.checkpoint_quiet_s,
        settings.converter,
        lambda: find_unloadable(list_executions(control, limit=_RECENT)) if control else {},
    )


def controller_of(settings: PlannerSettings) -> Controller | None:
    """Return the controller that the settings name; None where decisions are only written down."""
    if settings.controller == "none":
        if "execute" in settings.modes.values():
            raise BadInput("planner.modes says execute, and planner.controller names nobody who would")
        return None
    made = make_controller(settings.controller, settings.controller_options)
    return made if isinstance(made, InJob) else OwnSpelling(made)


def _hint(hint: JobHints) -> JobHint:
    layout = Layout(hint.tp, hint.pp, hint.dp, hint.micro_batches)
    transformer = Transformer(**hint.model.model_dump()) if hint.model else None
    known = layout if layout.gpus > 1 else None
    return JobHint(known, hint.weight, hint.min_nodes, hint.throughput, transformer)


Given = Mapping[str, Any]  # Any: options as they stand in the settings, checked against the controller's own


def make_controller(name: str, given: Given) -> Controller:
    """Return a controller; BadInput for an unknown name, and for options that are not its own, all at once."""
    if name not in CONTROLLERS:
        raise BadInput(f"there is no controller {name!r}; there are {', '.join(sorted(CONTROLLERS))}")
    kind, make = CONTROLLERS[name]
    complaints = list(_find_unknown(given, [option.name for option in fields(kind)]))
    try:
        made = TypeAdapter(kind).validate_python(given)
    except ValidationError as error:
        complaints += [f"{'.'.join(map(str, one['loc'])) or 'options'}: {one['msg']}" for one in error.errors()]
    if complaints:
        raise BadInput(f"the options of controller {name} cannot be used: {'; '.join(complaints)}")
    return make(made)


def _find_unknown(given: Given, known: Sequence[str]) -> Iterator[str]:
    for name in sorted(given.keys() - set(known)):
        close = get_close_matches(name, known, 1)
        yield f"{name} is not known" + (f", {close[0]} is" if close else "")


CONTROLLERS: Mapping[str, tuple[type[Any], Callable[[Any], Controller]]] = {  # Any: the options of each its own
    "command": (CommandOptions, CommandController),
    "in_job": (
        InJobOptions,
        lambda given: InJobController(
            given, OwnSpelling(make_controller(given.controller, given.controller_options))
        ),
    ),
    "kubernetes": (
        KubernetesOptions,
        lambda given: KubernetesController(connect(given.kubeconfig, given.context), given),
    ),
    "nvrx": (NvrxOptions, NvrxController),
    "slurm": (SlurmOptions, SlurmController),
    "torchrun": (TorchrunOptions, TorchrunController),
    "webhook": (WebhookOptions, WebhookController),
}
