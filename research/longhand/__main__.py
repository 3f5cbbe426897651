"""`python -m research.longhand make --out DIR`, `measure` or `stopping`."""

import tyro

from research.longhand.make import make, measure, stopping

tyro.extras.subcommand_cli_from_dict({"make": make, "measure": measure, "stopping": stopping})
