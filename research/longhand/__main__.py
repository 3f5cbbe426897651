"""`python -m research.longhand make --out DIR`, `small --out DIR`, `measure` or `stopping`."""

import tyro

from research.longhand.make import make, measure, small, stopping

tyro.extras.subcommand_cli_from_dict({"make": make, "small": small, "measure": measure, "stopping": stopping})
