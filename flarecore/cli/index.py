"""``flarecore index``: passages into an index file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from flarecore.errors import ConfigError

__all__ = ["add_parser", "run"]

_MAGIC = b"FLAREIDX"


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "index", parents=[common], allow_abbrev=False,
        help="make an index of documents",
        description="Reads passages from a .jsonl file ({\"text\", \"id\", \"title\", ...} a line, "
        "other keys become metadata), a .txt or .md document or a folder of them, embeds them and "
        "writes one index file.")
    parser.add_argument("source", metavar="DIR_OR_JSONL")
    parser.add_argument("-o", "--output", required=True, metavar="INDEX", help="the file to write")
    parser.add_argument("--force", action="store_true",
                        help="replace INDEX even if it is no index")
    parser.add_argument("--encoder", default="minilm-l6-v2", metavar="NAME_OR_DIR",
                        help="sentence encoder (default: minilm-l6-v2)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the encoder")
    group = parser.add_argument_group("documents")
    group.add_argument("--max-words", type=int, default=100, metavar="N",
                       help="words of a passage (default: 100)")
    group.add_argument("--overlap", type=int, default=0, metavar="N",
                       help="words that the next passage repeats (default: 0)")
    group.add_argument("--title-in-text", action=argparse.BooleanOptionalAction, default=True,
                       help="embed the title with the text (default: on)")
    group = parser.add_argument_group("graph (arXiv 1603.09320)")
    group.add_argument("--m", type=int, default=16, metavar="N",
                       help="M: links of a passage (default: 16)")
    group.add_argument("--ef-construction", type=int, default=200, metavar="N",
                       help="efConstruction: candidates while building (default: 200)")
    group.add_argument("--ef-search", type=int, default=64, metavar="N",
                       help="ef: candidates of a search (default: 64)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    from flarecore.cli.display import make_console
    from flarecore.cli.progress import StageProgress
    from flarecore.retrieval.corpus import read_passages
    from flarecore.retrieval.encoder import SentenceEncoder
    from flarecore.retrieval.hnsw import HnswRetriever

    output = Path(args.output)
    _check_output(output, args.force)
    notes = make_console(stderr=True)
    with StageProgress(notes) as progress:
        passages = read_passages(
            args.source, max_words=args.max_words, overlap=args.overlap, progress=progress)
        encoder = SentenceEncoder.load(args.encoder, threads=args.threads)
        index = HnswRetriever.build(
            passages, encoder, m=args.m, ef_construction=args.ef_construction,
            ef_search=args.ef_search, title_in_text=args.title_in_text, progress=progress)
    index.save(output)
    size_kb = -(-output.stat().st_size // 1024)
    print(f"{output}: {len(index)} passages, {encoder.dim} dimensions, {size_kb:,} KB")
    return 0


def _check_output(output: Path, force: bool) -> None:
    """Refuses a target that cannot be written or that would lose something else than an index."""
    if output.is_dir():
        raise ConfigError(f"{output}: is a directory; name a file")
    if not output.parent.is_dir():
        raise ConfigError(f"{output}: there is no directory {output.parent}")
    if output.exists() and not force:
        with output.open("rb") as file:
            start = file.read(len(_MAGIC))
        if start not in (b"", _MAGIC):
            raise ConfigError(
                f"{output}: exists and is no index; choose another name or add --force")
