"""The commands of ``unlearn``, one file each: its help, its options, and what it does.

``cli.Command`` says what each file has. What takes long to load (torch, Ray, MLflow, polars) is imported inside ``run``, so
that ``--help`` answers at once. Shared options are in ``options``; what reads them is in ``selection`` and ``running``.
"""
