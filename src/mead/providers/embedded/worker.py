"""The child process that runs the model: llama.cpp's own server on 127.0.0.1, behind a key.

Started by `server.py` with a JSON line on standard input (a pipe, so that the key stands in no process list)
and answers with one on standard output: `{"port": …}` once the model is loaded, or `{"error": …}`. It ends
when its standard input does: when its parent is gone, however that went.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any


def main() -> None:
    config = json.loads(sys.stdin.buffer.readline())
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the engine prints is no report
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _forbid_core_dumps()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        server = _start(config)
        answer: dict[str, object] = {"port": int(server.listening_address.rpartition(":")[2])}
    except Exception as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), file=report, flush=True)
    if "error" in answer:
        os._exit(1)
    threading.Event().wait()


def _start(config: dict[str, Any]) -> Any:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = config["model_path"]
    parameters.model_alias = {config["model_name"]}
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_keys = [config["secret"]]
    parameters.ui = False
    parameters.n_parallel = config["parallel"]
    parameters.n_ctx = config["context_tokens"] * config["parallel"]  # shared out among the slots
    parameters.cache_ram_mib = 64
    for cpu in (parameters.cpuparams, parameters.cpuparams_batch):
        cpu.n_threads = config["threads"]
        cpu.poll = 0  # threads that spin while they wait make a busy machine crawl
    return xllamacpp.Server(parameters)


def _end_with_parent() -> None:
    """Waits for the end of standard input, then ends at once: the engine's threads wait for nobody."""
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)


def _forbid_core_dumps() -> None:
    """A dump of this process would hold conversations."""
    try:
        import resource
    except ImportError:  # Windows writes none
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
