"""Print a script that completes commands and options in a shell.

For bash and zsh: eval "$(blobgc completion)" in ~/.bashrc or ~/.zshrc.
"""

import argparse

from blobgc.errors import SUCCESS

SCRIPT = """\
# Completion of blobgc, for bash and zsh.
[ -z "$ZSH_VERSION" ] || autoload -U +X bashcompinit && bashcompinit 2>/dev/null
_blobgc() {
    local current=${COMP_WORDS[COMP_CWORD]} words
    case $COMP_CWORD:${COMP_WORDS[1]} in
        1:*) words='%(commands)s' ;;
%(cases)s
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o default -F _blobgc blobgc"""


def arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(options: argparse.Namespace) -> int:
    from blobgc.cli import modules
    cases = []
    for name, module in modules().items():
        parser = argparse.ArgumentParser()
        module.arguments(parser)
        words = " ".join(sorted(parser._option_string_actions))
        cases.append(f"        *:{name}) words='{words}' ;;")
    names = " ".join([*modules(), "--help", "--version"])
    print(SCRIPT % {"commands": names, "cases": "\n".join(cases)})
    return SUCCESS
