"""The controller that the settings name, ready to use. One literal table says which there are."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from lockstep.errors import BadInput
from planner.controllers.kubernetes import KubernetesController, KubernetesOptions
from planner.controllers.kubernetes_api import connect
from planner.controllers.nvrx import NvrxController, NvrxOptions
from planner.controllers.protocol import Controller
from planner.controllers.site import CommandController, CommandOptions, WebhookController, WebhookOptions
from planner.controllers.slurm import SlurmController
from planner.controllers.slurm_commands import SlurmOptions
from planner.controllers.torchrun import TorchrunController, TorchrunOptions

Given = Mapping[str, Any]  # Any: options as they stand in the settings, checked against the controller's own
Options = TypeVar("Options")


def make_controller(name: str, options: Given, dry_run: bool) -> Controller:
    """Return a controller; BadInput for an unknown name, and for options that are not its own.

    It is a dry run if either asks for one: nobody's request to change nothing is passed over.
    """
    if name not in CONTROLLERS:
        raise BadInput(f"there is no controller {name!r}; there are {', '.join(sorted(CONTROLLERS))}")
    kind, make = CONTROLLERS[name]
    given = _with_secret(options) if name == "webhook" else options
    return make(read_options(kind, name, {**given, "dry_run": True} if dry_run else given))


def read_options(kind: type[Options], name: str, given: Given) -> Options:
    """Return a controller's options, with all complaints at once."""
    assert is_dataclass(kind)
    known = {field.name for field in fields(kind)}
    complaints = [f"{key} is not known" for key in sorted(set(given) - known)]
    try:
        made = TypeAdapter(kind).validate_python(dict(given))
    except ValidationError as error:
        complaints += [f"{'.'.join(map(str, one['loc'])) or 'options'}: {one['msg']}" for one in error.errors()]
    if complaints:
        raise BadInput(f"the options of controller {name} cannot be used: {'; '.join(complaints)}")
    return made


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
    "kubernetes": (
        KubernetesOptions,
        lambda given: KubernetesController(connect(given.kubeconfig, given.context), given),
    ),
    "nvrx": (NvrxOptions, NvrxController),
    "slurm": (SlurmOptions, SlurmController),
    "torchrun": (TorchrunOptions, TorchrunController),
    "webhook": (WebhookOptions, WebhookController),
}
