"""Numbers, lengths of time and moments as people read them."""

from lockstep.clock import NS_PER_S, rfc3339

UNKNOWN = "unknown"  # never a zero for what nobody measured


def figure(number: float | None) -> str:
    """Return a number with the digits that count.

    >>> figure(0.0312), figure(1.7), figure(431.7), figure(12_345.6), figure(None)
    ('0.031', '1.7', '432', '12,346', 'unknown')
    """
    if number is None:
        return UNKNOWN
    return f"{number:,.0f}" if abs(number) >= 10 else f"{number:.2g}"


def share(part: float | None) -> str:
    """Return a share in percent; of a small one the digits that count.

    >>> share(0.9349), share(1.0), share(0.0153), share(None)
    ('93 %', '100 %', '1.5 %', 'unknown')
    """
    return UNKNOWN if part is None else f"{figure(100 * part)} %"


def lasting(seconds: float | None) -> str:
    """Return a length of time.

    >>> lasting(0.25), lasting(45.2), lasting(312), lasting(7_500), lasting(400_000)
    ('0.25 s', '45 s', '5 min 12 s', '2 h 5 min', '4 d 15 h')
    """
    if seconds is None:
        return UNKNOWN
    if seconds < 10:
        return f"{figure(seconds)} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


def between(start_ns: int, end_ns: int) -> str:
    """Return how long it is from one moment to another; a moment that is ahead counts as now."""
    return lasting(max(end_ns - start_ns, 0) / NS_PER_S)


def moment(ts_ns: int) -> str:
    """Return date and time to the second, in UTC.

    >>> moment(1_794_814_664_500_000_000), minute(0)
    ('2026-11-16 07:37:44', '1970-01-01 00:00')
    """
    return rfc3339(ts_ns)[:19].replace("T", " ")


def minute(ts_ns: int) -> str:
    """Return date and time to the minute, in UTC."""
    return moment(ts_ns)[:16]


def clock_time(ts_ns: int) -> str:
    """Return the time of day to the second, in UTC."""
    return moment(ts_ns)[11:]


def money(amount: float | None) -> str:
    """Return an amount in the site's currency, which Lockstep does not know by name."""
    return UNKNOWN if amount is None else f"{amount:,.2f}"


def size(octets: float | None) -> str:
    """Return a number of bytes.

    >>> size(17), size(1_500), size(2_400_000)
    ('17 B', '1.5 kB', '2.4 MB')
    """
    if octets is None:
        return UNKNOWN
    for unit in ("B", "kB", "MB", "GB"):
        if octets < 1000:
            return f"{octets:.0f} {unit}" if unit == "B" else f"{octets:.1f} {unit}"
        octets /= 1000
    return f"{octets:.1f} TB"
