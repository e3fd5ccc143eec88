"""The process in which torch.utils.cpp_extension builds one library.  Run as a file, never imported.

A process of its own, because ``load`` takes its toolkit from the environment when torch is imported, prints
the compilers' output on file descriptor 1, and opens what it built with a lock file that a killed build
would leave behind.  Its only argument is the path of a JSON object: the keyword arguments of ``load``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time


def die_with(parent: int) -> None:
    """Ends this process and its compilers when the process that asked for them is gone."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    with open(sys.argv[1]) as file:
        job = json.load(file)
    threading.Thread(target=die_with, args=(job.pop("parent"),), daemon=True).start()

    import torch.utils.cpp_extension as cpp_extension

    # `load` also opens the library: what links but does not load is a failed build.
    cpp_extension.load(is_python_module=False, verbose=True, **job)


if __name__ == "__main__":
    main()
