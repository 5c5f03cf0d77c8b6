"""Puts the recovery planner together as the settings say, and by the policy in force."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from lockstep.config import Settings
from lockstep.errors import BadInput
from lockstep.sections import JobHints
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
from planner.context import ClusterFacts, Durations, Layout
from planner.controllers.in_job import InJobController, InJobOptions
from planner.controllers.kubernetes import KubernetesController, KubernetesOptions
from planner.controllers.kubernetes_api import connect
from planner.controllers.nvrx import NvrxController, NvrxOptions
from planner.controllers.protocol import EVERY_ACT, Controller, InJob, OwnSpelling
from planner.controllers.site import CommandController, CommandOptions, WebhookController, WebhookOptions
from planner.controllers.slurm import SlurmController
from planner.controllers.slurm_commands import SlurmOptions
from planner.controllers.torchrun import TorchrunController, TorchrunOptions
from planner.decide import PlannerOptions, Policy
from planner.execute import Executor
from planner.limits import Limits
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
        settings: Settings,
        control: ControlDatabase,
        reader: FactReader,
        executor: Executor | None,
        returner: Returner | None,
    ) -> None:
        options = options_of(settings)
        rebalancer = Rebalancer(control, reader, options)
        super().__init__(control, reader, options, executor, returner, rebalancer)
        self._settings, self._facts, self._sharing = settings, reader, rebalancer
        self._followed: PlannerPolicy | None = None

    def run_once(self, lease: Lease, now_ns: int) -> int:
        """Do one round under the lease by the policy of this moment."""
        policy = current_policy(self._control)
        if policy != self._followed:
            wanted = with_policy(self._settings, policy)
            self._options = options_of(wanted)
            self._sharing.use(self._options)
            self._facts.use_spares(wanted.planner.spares)
            self._followed = policy
        return super().run_once(lease, now_ns)


def with_policy(settings: Settings, policy: PlannerPolicy | None) -> Settings:
    """Return the settings as the policy changes them."""
    if policy is None:
        return settings
    changed = {name: getattr(policy, name) for name in PlannerPolicy.model_fields}
    return settings.model_copy(update={"planner": settings.planner.model_copy(update=changed)})


def make_planner(
    settings: Settings, store: Store | None, control: ControlDatabase, topology: Topology | None
) -> PlannerService:
    """Return the planner; without a controller it decides and carries nothing out."""
    wanted = settings.planner
    controller = controller_of(settings)
    folders = CheckpointFolders(
        wanted.checkpoints,
        wanted.read_mb_per_s,
        wanted.checkpoint_quiet_s,
        wanted.converter,
        lambda: find_unloadable(list_executions(control, limit=_RECENT)),
    )
    checkpoints = folders if wanted.checkpoints else None
    cluster = ClusterFacts(
        spares=wanted.spares,
        can_reroute=wanted.paths and topology is not None and topology.routing == "ecmp",
        can_restart=controller is not None,
        controller=controller.name if controller else "",
        acts=controller.acts if controller else EVERY_ACT,
        restarts_whole_job=controller is None or controller.restarts_whole_job,
    )
    hints = {name: _hint(hint) for name, hint in wanted.jobs.items()}
    reader = FactReader(
        store,
        controller,
        checkpoints,
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
    executor = Executor(control, controller, converter=Converter(wanted.convert_timeout_s))
    tester = CommandTester(wanted.test_command, wanted.test_timeout_s) if wanted.test_command else None
    returner = Returner(control, controller, tester, wanted.test_after_s)
    return PolicyPlanner(settings, control, reader, executor, returner)


def controller_of(settings: Settings) -> Controller | None:
    """Return the controller that the settings name; None where decisions are only written down."""
    if settings.planner.controller == "none":
        if any(mode == "execute" for mode in settings.planner.modes.values()):
            raise BadInput("planner.modes says execute, and planner.controller names nobody who would")
        return None
    made = make_controller(settings.planner.controller, settings.planner.controller_options)
    return made if isinstance(made, InJob) else OwnSpelling(made)


def options_of(settings: Settings) -> PlannerOptions:
    """Return how this site decides."""
    wanted = settings.planner
    limits = Limits(
        nodes_per_hour=wanted.nodes_per_hour,
        restarts_per_hour=wanted.restarts_per_hour,
        nodes_out=wanted.nodes_out,
        share_of_block=wanted.share_of_block,
    )
    return PlannerOptions(
        policy=Policy(
            modes=wanted.modes,
            limits=limits,
            test_after_s=wanted.test_after_s if wanted.test_command else None,
        ),
        durations=Durations(start_s=wanted.start_s),
        gpu_hour_price=wanted.gpu_hour_price,
    )


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
    options = dict(_with_secret(given) if name == "webhook" else given)
    complaints = [f"{key} is not known" for key in sorted(options.keys() - {field.name for field in fields(kind)})]
    try:
        made = TypeAdapter(kind).validate_python(options)
    except ValidationError as error:
        complaints += [f"{'.'.join(map(str, one['loc'])) or 'options'}: {one['msg']}" for one in error.errors()]
    if complaints:
        raise BadInput(f"the options of controller {name} cannot be used: {'; '.join(complaints)}")
    return make(made)


def _with_secret(given: Given) -> Given:
    """Return a webhook's options with its secret, which is read from a file: settings are shown to people."""
    if "secret" in given:
        raise BadInput("the options of controller webhook cannot be used: secret belongs in a file (secret_file)")
    if "secret_file" not in given:
        return given
    path = given["secret_file"]
    try:
        secret = Path(path).read_text().strip()
    except OSError as failure:
        raise BadInput(f"the webhook's secret cannot be read from {path}: {failure.strerror}") from None
    return {key: value for key, value in given.items() if key != "secret_file"} | {"secret": secret}


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
