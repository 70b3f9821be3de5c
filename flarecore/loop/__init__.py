"""The loop of one answer, its parts and its drivers. The public face is :mod:`flarecore.flare`."""
