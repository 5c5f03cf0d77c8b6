"""Which descriptions of a fabric `lockstep topology import` reads, and how files become one topology."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from importers.topology.ibnetdiscover import parse_ibnetdiscover
from importers.topology.joining import Imported, JoinOptions, join_surveys
from importers.topology.lldp import parse_lldp
from importers.topology.nccl_xml import parse_nccl_xml
from importers.topology.slurm import CONF_LINE, parse_slurm_conf, parse_slurm_yaml
from importers.topology.survey import End, SeenCable, SeenNic, SeenNode, Source, Survey
from importers.topology.trees import parse_lingjun, parse_topograph
from lockstep.errors import BadInput, BadTopology
from lockstep.topology import Topology, dump_topology, parse_topology, split_end


def parse_native(source: Source) -> Survey:
    """Return what a topology.json tells, or its complaints."""
    survey = Survey(source.name)
    try:
        topology = parse_topology(source.text())
    except BadTopology as error:
        for complaint in error.complaints:
            survey.complain(complaint)
        return survey
    survey.routing = topology.routing
    for node in topology.nodes:
        nics = tuple(SeenNic(nic.id, plane=nic.plane, rail=nic.rail, address=nic.address) for nic in node.nics)
        seen = SeenNode(node.id, survey.source, node.kind, tier=node.tier, rack=node.rack, gpus=node.gpus, nics=nics)
        survey.nodes.append(replace(seen, addresses=node.addresses))
    survey.cables += [
        SeenCable(End(*split_end(link.a)), End(*split_end(link.b)), survey.source, link.gbps, link.up)
        for link in topology.links
    ]
    return survey


_MOST_BYTES = 256 << 20  # topology.json of a fat tree with k=64 has 60 MB
_MOST_FILES = 1 << 17

Parse = Callable[[Sequence[Source]], list[Survey]]


@dataclass(frozen=True, slots=True)
class Format:
    """How files of a kind are read; `suffixes` choose among the files of a directory."""

    parse: Parse
    suffixes: tuple[str, ...]
    is_per_node: bool = False  # a file is of one host or switch, and its name says of which


@dataclass(frozen=True, slots=True)
class Input:
    """Files or directories of one format; `host` is the name of the node where the file's own name is not it."""

    format_name: str
    paths: tuple[Path, ...]
    host: str | None = None


def import_topology(inputs: Sequence[Input], options: JoinOptions) -> Imported:
    """Return the topology that all inputs tell of together, or raise one error with all complaints."""
    read = [(FORMATS[known_format(one.format_name)], read_sources(one)) for one in inputs]
    sources = [source for _, found in read for source in found]
    if len(sources) == 1 and inputs[0].format_name == NATIVE:  # as it is, link ids included
        update = {"routing": options.routing} if options.routing else {}
        return Imported(parse_topology(sources[0].text()).model_copy(update=update), ())
    return join_surveys([survey for form, found in read for survey in form.parse(found)], options)


def write_topology(topology: Topology, target: Path) -> None:
    """Write topology.json whole or not at all: whoever reads it meanwhile gets the old one."""
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_text(dump_topology(topology), encoding="utf-8")
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def known_format(name: str) -> str:
    """Return the name itself, or raise BadInput with those that are known."""
    if name not in FORMATS:
        raise BadInput(f"there is no format {name!r}; the known ones are: {', '.join(FORMATS)}")
    return name


def read_sources(one: Input) -> list[Source]:
    """Return the files of an input, those of directories too, in the order of their names."""
    form = FORMATS[one.format_name]
    files: list[Path] = []
    for path in one.paths:
        found = [path]
        if path.is_dir():
            found = sorted(file for file in path.iterdir() if file.is_file() and file.suffix in form.suffixes)
        if not found or len(found) > _MOST_FILES:
            raise BadInput(f"{path} holds {len(found)} files that end in {' or '.join(form.suffixes)}")
        files += found
    if one.host is not None and not (form.is_per_node and len(files) == 1):
        raise BadInput(
            f"--host names the node of one file of a format with a file per node, not of {len(files)} files"
        )
    sources = [_read(file) for file in files]
    return [replace(source, node=one.host) for source in sources] if one.host is not None else sources


def _read(file: Path) -> Source:
    with open(file, "rb") as opened:
        data = opened.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise BadInput(f"{file}: is longer than {_MOST_BYTES >> 20} MiB")
    return Source(str(file), file.stem, data)


def _each(parse: Callable[[Source], Survey]) -> Parse:
    """Return a parser of several files that turns what one of them cannot be read for into a complaint."""

    def parse_one(source: Source) -> Survey:
        try:
            return parse(source)
        except BadTopology as error:
            return Survey(source.name, complaints=error.complaints)
        except BadInput as error:
            return Survey(source.name, complaints=[str(error)])

    return lambda sources: [parse_one(source) for source in sources]


NATIVE = "lockstep"

FORMATS: Mapping[str, Format] = {
    "ibnetdiscover": Format(_each(parse_ibnetdiscover), (".txt", ".out", ".ibnetdiscover")),
    "lingjun": Format(_each(parse_lingjun), (".csv",)),
    "lldp": Format(parse_lldp, (".json",), is_per_node=True),
    NATIVE: Format(_each(parse_native), (".json",)),
    "nccl-xml": Format(_each(parse_nccl_xml), (".xml",), is_per_node=True),
    "slurm": Format(
        _each(lambda one: parse_slurm_conf(one) if CONF_LINE.search(one.text()) else parse_slurm_yaml(one)),
        (".conf", ".yaml", ".yml"),
    ),
    "topograph": Format(_each(parse_topograph), (".json", ".yaml", ".yml")),
}
