"""Which authorities may sign the certificates of servers that we talk to: the system's, and those of the site."""

import ssl
from pathlib import Path

from lockstep.errors import BadInput


def trusted(ca_file: Path | None = None, setting: str = "LOCKSTEP_CA_FILE") -> ssl.SSLContext:
    """Return what certificates are checked with; SSL_CERT_FILE stands in for the system's authorities, as elsewhere.

    The setting is where the file was named, for who has to mend it.
    """
    context = ssl.create_default_context()
    if ca_file:
        try:
            context.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError) as error:
            raise BadInput(f"cannot read authorities from {ca_file} ({setting}): {error}") from error
    return context
