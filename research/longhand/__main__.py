"""`python -m research.longhand make --out DIR` or `measure`."""

import tyro

from research.longhand.make import make, measure

tyro.extras.subcommand_cli_from_dict({"make": make, "measure": measure})
