"""The command line: parse, call, print."""

import os
import sys
from typing import Any

import tyro

from jaxattn.commands import results, studies
from jaxattn.console import complain, print_table
from jaxattn.errors import InputError, RunError
from jaxattn.options import compiled_folder


def main() -> None:
    """Run the command line and exit with its status: 0 done, 1 failed while running, 2 wrong input."""
    commands: dict[str, Any] = {
        "run": studies.run,
        "plan": studies.plan,
        "launch": studies.launch,
        "claims": results.claims,
        "reproduce": results.reproduce,
        "data": studies.data,
        "diagnose": results.diagnose,
        "aggregate": results.aggregate,
        "report": results.report,
        "status": studies.status,
        "schema": schema,
        "doctor": doctor,
    }
    code: int
    try:
        code = tyro.extras.subcommand_cli_from_dict(
            commands,
            prog="jaxattn",
            description="Experiments on attention with trained embeddings.",
            use_underscores=False,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
        sys.stdout.flush()
    except InputError as error:
        code = complain(error, 2)
    except RunError as error:
        code = complain(error, 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def doctor() -> int:
    """Check this machine: devices, versions, float64, folders, disk, known troubles; exit with 1 if broken.

    Example: jaxattn doctor
    """
    import pandas as pd

    from jaxattn.engine.doctor import examine

    findings = examine(compiled_folder())
    print_table("Doctor", pd.DataFrame(findings))
    return int(any(finding.state == "broken" for finding in findings))


def schema() -> int:
    """Print the JSON schema of sweep files, for editors.

    Example: jaxattn schema > sweep.schema.json
    """
    import json

    from jaxattn.study.schema import schema

    print(json.dumps(schema(), indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    main()
