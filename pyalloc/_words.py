"""Sizes and numbers as people read them; what messages and reprs are made of."""


def readable(size: int) -> str:
    """Bytes for people: 512 B, 64.00 MiB, 1.50 GiB."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.2f} {unit}"
    return f"{size} B"


def signed(size: int) -> str:
    """The same for what grew or shrank: +64.00 MiB, -512 B."""
    return ("-" if size < 0 else "+") + readable(abs(size))


def counted(number: int, one: str, many: str = "") -> str:
    """1 block, 1,000 blocks."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
