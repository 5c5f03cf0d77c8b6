"""Adds everything that reads to the app: its routes in their order, and what they share between requests."""

from fastapi import FastAPI

from api.operations import Operations
from api.parts import Parts
from api.reading.checkpoints import open_folders
from api.reading.incidents import IncidentPages
from api.reading.shelf import MatrixShelf
from api.routes import captures, checkpoints, hosts, jobs, topology
from api.routes import parts as part_routes


def install_reads(app: FastAPI, parts: Parts) -> None:
    """Make the app answer what is asked of jobs, machines, parts, checkpoints and captures."""
    app.state.incident_pages = IncidentPages(parts.control, parts.clock)
    app.state.matrices = MatrixShelf(parts.store, parts.clock)
    app.state.checkpoints = open_folders(parts.settings.planner)
    app.state.operations = Operations(parts.clock)
    # Jobs come last: a job's id may hold slashes, so that its route takes whatever is left.
    for module in (captures, hosts, part_routes, topology, checkpoints, jobs):
        app.include_router(module.router)
