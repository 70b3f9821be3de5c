"""A process that opens a model, decodes one token and says when it did what.

``python -m flarecore.bench.load_child`` reads a JSON request from standard input and writes one
JSON line. Imports stand where they are timed.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Answers the request on standard input."""
    request: dict[str, Any] = json.loads(sys.stdin.read())
    answer = _flarecore(request) if request["engine"] == "flarecore" else _peer(request)
    answer["peak_rss_bytes"] = _status_bytes("VmHWM") or _peak_rss_bytes()
    answer["anonymous_bytes"] = _status_bytes("RssAnon")
    print(json.dumps(answer), flush=True)


def _flarecore(request: dict[str, Any]) -> dict[str, Any]:
    from flarecore.engine import Engine
    from flarecore.model import Model

    imported = time.monotonic()
    model = Model.load(request["path"], threads=request["threads"],
                       quantize=request["quantize"])
    engine = Engine(model, compute=request["compute"])
    opened = time.monotonic()
    token_ids = model.tokenizer.encode(request["text"], add_bos=model.tokenizer.adds_bos)
    decoded = engine.sequence().regenerate(token_ids, max_tokens=1, until="eos", ignore_eos=True)
    finished = time.monotonic()
    return {"imported": imported, "opened": opened, "finished": finished,
            "token_id": decoded.token_ids[0]}


def _peer(request: dict[str, Any]) -> dict[str, Any]:
    path, threads = Path(request["path"]), request["threads"]
    if request["engine"] == "transformers":
        import torch  # noqa: F401
        import transformers  # noqa: F401

        from flarecore.bench.transformers_runner import TransformersRunner as PeerRunner
    else:
        import llama_cpp  # type: ignore[import-not-found,unused-ignore]  # noqa: F401

        from flarecore.bench.llama_runner import (  # type: ignore[assignment]
            LlamaRunner as PeerRunner,
        )
    imported = time.monotonic()
    options = {} if request["repack"] else {"repack": False}
    runner = PeerRunner(path, threads, **options)
    opened = time.monotonic()
    token = runner.prefill(request["token_ids"])
    return {"imported": imported, "opened": opened, "finished": time.monotonic(),
            "token_id": token}


def _peak_rss_bytes() -> int:
    """The largest resident size; on Linux it may be the parent's, which exec() hands down."""
    # Kilobytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status_bytes(name: str) -> int:
    """VmHWM: largest resident size since exec(). RssAnon: what is no page of a file, now. 0 where
    the system does not say."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


if __name__ == "__main__":
    main()
