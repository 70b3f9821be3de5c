"""Benchmarks that prove before they time: ``flarecore bench`` and ``benchmarks/``.

``harness`` times, ``runner`` and ``peers`` are what is timed, ``proofs`` compares them with the
reference first. ``decode``, ``busy``, ``prefill``, ``load``, ``sampling``, ``loop``, ``growth``,
``answers``, ``retrieval`` and ``quality`` are the subjects, each with a ``measure`` that returns a
:class:`~flarecore.bench.rows.Report`.
"""
