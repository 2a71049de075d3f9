"""The command `vn`: one file per verb. Verbs are imported when called, so that `vn --help` is quick."""

import sys

VERBS = {
    "check": "is a module equivariant? a row per layer, and the first one that breaks",
    "convert": "the authors' checkpoints as models of this library",
    "data": "published data sets and your own files as packs, for training",
    "view": "a picture of a data set, parts in colour",
}


class UserError(Exception):
    """A mistake of the user's: shown as one line, without a traceback."""


def main() -> None:
    """Run `vn VERB ...`."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        sys.exit(0 if arguments else 2)
    verb = arguments[0]
    if verb == "--version":
        from importlib.metadata import version

        print(version("vector-neurons"))
        return
    if verb not in VERBS:
        from difflib import get_close_matches

        close = get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean `vn {close[0]}`?" if close else "`vn --help` lists the verbs"
        print(f"vn: there is no verb {verb!r}; {hint}", file=sys.stderr)
        sys.exit(2)
    from importlib import import_module

    import tyro

    command = import_module(f".{verb}", __package__).run
    try:
        sys.exit(tyro.cli(command, prog=f"vn {verb}", args=arguments[1:]))
    except UserError as error:
        print(f"vn {verb}: {error}", file=sys.stderr)
        sys.exit(2)


def _help() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb.ljust(width)}  {text}" for verb, text in VERBS.items())
    return f"""usage: vn VERB [options]

Rotation-equivariant networks from vector neurons.

{verbs}

`vn VERB --help` explains a verb's options; `vn --version` prints the version."""
