"""What is set again and again on a running fabric: the rate of a port, and a route."""

from typing import Any

from tests.testbed.fabric.options import ShapeOptions
from tests.testbed.fabric.routes import Route

_LEAST_BPS = 1_000.0  # bytes; tbf takes no rate of zero, and "down" says that better


def shape(route: Any, index: int, rate_mbps: float, options: ShapeOptions) -> None:
    """Let an interface send at a rate from now on; what waits in its queue goes on waiting."""
    rate = max(rate_mbps * 1e6 / 8, _LEAST_BPS)
    queue = rate * options.queue_ms / 1e3 + options.burst_bytes
    route.tc("replace", "tbf", index, rate=int(rate), burst=options.burst_bytes, limit=int(queue))


def lay_route(netlink: Any, route: Route) -> None:
    """Set a route, or set it again after an interface was down: the kernel forgets routes without a way."""
    if len(route.gateways) == 1:
        netlink.route("replace", dst=route.to, gateway=route.gateways[0], table=route.table)
    else:
        ways = [{"gateway": gateway, "hops": 0} for gateway in route.gateways]
        netlink.route("replace", dst=route.to, multipath=ways, table=route.table)
