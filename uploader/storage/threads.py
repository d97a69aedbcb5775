"""The threads of a store, by what they do and for how long."""

import os

from uploader.cores import run_anywhere
from uploader.storage import disk
from uploader.tasks import Pool, give_way, give_way_anywhere, give_way_to_all


class Threads:
    """What is short shares a core with the event loop (`uploader/cores.py`); what takes long, by the number of bytes or of
    files, runs anywhere."""

    def __init__(self) -> None:
        cores = os.cpu_count() or 1
        self.disk = Pool(16, "disk", translate=disk.refusal)
        self.long = Pool(16, "disk, long", translate=disk.refusal, initializer=run_anywhere)
        # Of their own, so that downloads do not wait for writes to be synced, nor either for long work.
        self.reading = Pool(8, "reading", translate=disk.refusal)
        self.hashing = Pool(cores, "hashing", translate=disk.refusal, initializer=give_way)
        self.long_hashing = Pool(cores, "hashing, long", translate=disk.refusal, initializer=give_way_anywhere)
        # Of their own, so that whoever asks for the signatures of much holds up no merge.
        self.signing = Pool(2, "signing", translate=disk.refusal, initializer=give_way_anywhere)
        # Of its own, because whoever reads at a pace sleeps in its thread.
        self.scrubbing = Pool(1, "scrubbing", translate=disk.refusal, initializer=give_way_to_all)

    def shutdown(self) -> None:
        """Take no more work."""
        short = (self.disk, self.reading, self.hashing)
        for pool in (*short, self.long, self.long_hashing, self.signing, self.scrubbing):
            pool.shutdown()
