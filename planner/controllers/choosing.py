"""The controller that the settings name, ready to use. One literal table says which there are."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from lockstep.errors import BadInput
from planner.controllers.command import CommandController, CommandOptions
from planner.controllers.kubernetes import KubernetesController, KubernetesOptions
from planner.controllers.kubernetes_api import connect
from planner.controllers.nvrx import NvrxController, NvrxOptions
from planner.controllers.protocol import Controller
from planner.controllers.slurm import SlurmController
from planner.controllers.slurm_commands import SlurmOptions
from planner.controllers.torchrun import TorchrunController, TorchrunOptions
from planner.controllers.webhook import WebhookController, WebhookOptions

Given = Mapping[str, Any]  # Any: options as they stand in the settings, checked against the controller's own
Options = TypeVar("Options")


def make_controller(name: str, options: Given, dry_run: bool) -> Controller:
    """Return a controller; BadInput for an unknown name, and for options that are not its own."""
    make = CONTROLLERS.get(name)
    if make is None:
        raise BadInput(f"there is no controller {name!r}; there are {', '.join(sorted(CONTROLLERS))}")
    return make(options, dry_run)


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


def _slurm(given: Given, dry_run: bool) -> Controller:
    return SlurmController(read_options(SlurmOptions, "slurm", _with_dry_run(given, "is_dry_run", dry_run)))


def _kubernetes(given: Given, dry_run: bool) -> Controller:
    options = read_options(KubernetesOptions, "kubernetes", _with_dry_run(given, "dry_run", dry_run))
    return KubernetesController(connect(options.kubeconfig, options.context), options)


def _nvrx(given: Given, dry_run: bool) -> Controller:
    return NvrxController(read_options(NvrxOptions, "nvrx", _with_dry_run(given, "dry_run", dry_run)))


def _torchrun(given: Given, dry_run: bool) -> Controller:
    return TorchrunController(read_options(TorchrunOptions, "torchrun", _with_dry_run(given, "is_dry_run", dry_run)))


def _webhook(given: Given, dry_run: bool) -> Controller:
    """The secret is read from a file: settings are shown to people."""
    if "secret" in given:
        raise BadInput("the options of controller webhook cannot be used: secret belongs in a file (secret_file)")
    rest = {key: value for key, value in given.items() if key != "secret_file"}
    secret = _read_secret(given["secret_file"]) if "secret_file" in given else None
    told = _with_dry_run({**rest, "secret": secret}, "dry_run", dry_run)
    return WebhookController(read_options(WebhookOptions, "webhook", told))


def _command(given: Given, dry_run: bool) -> Controller:
    return CommandController(read_options(CommandOptions, "command", _with_dry_run(given, "dry_run", dry_run)))


def _with_dry_run(given: Given, name: str, dry_run: bool) -> Given:
    """Return the options with a dry run if either asks for one: nobody's wish to change nothing is passed over."""
    return {**given, name: True} if dry_run else given


def _read_secret(path: str | Path) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError as failure:
        raise BadInput(f"the webhook's secret cannot be read from {path}: {failure.strerror}") from None


CONTROLLERS: Mapping[str, Callable[[Given, bool], Controller]] = {
    "command": _command,
    "kubernetes": _kubernetes,
    "nvrx": _nvrx,
    "slurm": _slurm,
    "torchrun": _torchrun,
    "webhook": _webhook,
}
