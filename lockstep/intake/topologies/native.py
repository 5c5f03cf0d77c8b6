"""Our own topology.json as one of several inputs."""

from lockstep.errors import BadTopology
from lockstep.intake.topologies.survey import End, SeenCable, SeenNic, SeenNode, Source, Survey
from lockstep.topology import Node, Topology, parse_topology, split_end


def parse_native(source: Source) -> Survey:
    """Return what a topology.json tells, or its complaints."""
    survey = Survey(source.name)
    try:
        topology = parse_topology(source.text())
    except BadTopology as error:
        for complaint in error.complaints:
            survey.complain(complaint)
        return survey
    return survey_topology(topology, survey)


def survey_topology(topology: Topology, survey: Survey) -> Survey:
    """Put a whole topology into a survey."""
    survey.routing = topology.routing
    survey.nodes += [_node(node, survey.source) for node in topology.nodes]
    survey.cables += [
        SeenCable(End(*split_end(link.a)), End(*split_end(link.b)), survey.source, link.gbps, link.up)
        for link in topology.links
    ]
    return survey


def _node(node: Node, source: str) -> SeenNode:
    return SeenNode(
        id=node.id,
        source=source,
        kind=node.kind,
        tier=node.tier,
        rack=node.rack,
        gpus=node.gpus,
        nics=tuple(SeenNic(nic.id, plane=nic.plane, rail=nic.rail, address=nic.address) for nic in node.nics),
        addresses=node.addresses,
    )
