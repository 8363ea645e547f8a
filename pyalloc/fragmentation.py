"""Fragmentation, defined once for pools and devices. Each figure is in [0, 1]."""

from __future__ import annotations


class Fragmentation:
    """The figures of something that has these sizes, in bytes (pool_fields.def says what each is)."""

    requested: int
    allocated: int
    used: int
    reserved: int
    largest_free: int
    largest_remapped: int

    def _set_aside(self) -> int:
        """Of a reserve, what nothing uses."""
        raise NotImplementedError

    def _free(self) -> int:
        return self.reserved - self.allocated

    @property
    def internal_fragmentation(self) -> float:
        """1 - requested / allocated: what rounding costs. 0 where nothing is allocated."""
        return 1 - self.requested / self.allocated if self.allocated else 0.0

    @property
    def external_fragmentation(self) -> float:
        """1 - largest free run / free bytes, of mapped memory; 0 when none is free. Remapping makes it harmless for
        requests of a granule or more.
        """
        return self._lost(self.largest_free)

    @property
    def effective_external_fragmentation(self) -> float:
        """1 - largest request that free mapped memory could serve / free bytes: what is lost although idle granules
        move to where they are needed. 0 when none is free. Memory still to be created does not count.
        """
        return self._lost(self.largest_remapped)

    @property
    def granule_fragmentation(self) -> float:
        """Free bytes in partly used granules / reserved: what remapping cannot reach. A reserve that waits does not
        count.
        """
        free = self.used - self.allocated - self._set_aside()
        return max(0, free) / self.reserved if self.reserved else 0.0

    def fragmentation(self) -> dict[str, float]:
        """Every figure, by its kind."""
        return {
            "internal": self.internal_fragmentation,
            "external": self.external_fragmentation,
            "effective_external": self.effective_external_fragmentation,
            "granule": self.granule_fragmentation,
        }

    def _lost(self, largest: int) -> float:
        free = self._free()
        return max(0.0, 1 - largest / free) if free > 0 else 0.0


class PoolFragmentation(Fragmentation):
    """Of a pool, with its reserve."""

    reserve: int

    def _set_aside(self) -> int:
        return max(0, self.reserve - self.allocated)


class DeviceFragmentation(Fragmentation):
    """Of a whole device (ledger_fields.def). What is set aside is not free memory here."""

    free: int
    shelf: int
    idle: int
    set_aside: int
    asleep: int

    def _set_aside(self) -> int:
        return self.set_aside

    def _free(self) -> int:
        return super()._free() - self.set_aside

    @property
    def driver_fragmentation(self) -> float:
        """1 - usable / all, of the heap that is not live. Usable is what the driver has left and wholly free granules
        (idle, shelf); all is what the driver has left and what pyalloc holds, but for the bytes asked for, of what is
        awake, and what is set aside. In [0, 1].
        """
        live = max(0, self.requested - self.asleep)
        everything = self.free + self.reserved - self.set_aside + self.shelf - live
        return max(0.0, 1 - (self.free + self.idle + self.shelf) / everything) if everything > 0 else 0.0

    def fragmentation(self) -> dict[str, float]:
        """Every figure, by its kind."""
        return {**super().fragmentation(), "driver": self.driver_fragmentation}
