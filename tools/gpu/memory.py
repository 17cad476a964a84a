"""Memory of the GPU."""

import subprocess
import threading


class Peak:
    """The largest use of the GPU's memory in a block, which nvidia-smi reports for all programs together."""

    def __enter__(self):
        self.mib, self.ends = None, threading.Event()
        self.watch = threading.Thread(target=self.poll, daemon=True)
        self.watch.start()
        return self

    def poll(self):
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not self.ends.wait(0.4):
            try:
                used = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
                self.mib = max(self.mib or 0, int(used[0]))
            except (OSError, ValueError, IndexError, subprocess.CalledProcessError):
                return

    def __exit__(self, *_):
        self.ends.set()
        self.watch.join()
