"""A zarr store that records reads."""

from zarr.storage import MemoryStore


class CountingStore(MemoryStore):
    """Records reads of chunks. `content` is its dict of buffers by key."""

    def __init__(self):
        self.content = {}
        super().__init__(self.content)
        self.requests = []

    def note(self, key, byte_range, reply):
        if "zarr.json" not in key:
            self.requests.append((byte_range, None if reply is None else len(reply)))
        return reply

    async def get(self, key, prototype=None, byte_range=None):
        return self.note(key, byte_range, await super().get(key, prototype, byte_range))

    def get_sync(self, key, *, prototype=None, byte_range=None):
        reply = super().get_sync(key, prototype=prototype, byte_range=byte_range)
        return self.note(key, byte_range, reply)

    def fetched(self):
        return sum(length or 0 for _, length in self.requests)
