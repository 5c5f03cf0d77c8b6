"""A Lockstep server as Python sees it: `from lockstep.client import Client`; needs the extra `client`."""

from lockstep.client.client import Client as Client
