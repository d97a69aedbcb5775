"""Completion by the shell, as click has it; but Bash is told apart what is a name on the server.

Such a name is quoted as Bash quotes files, and one that ends with a slash is not the end of a word. zsh and fish quote by
themselves.
"""

from typing import Any

from click.shell_completion import BashComplete, CompletionItem, add_completion_class

_SOURCE = """\
%(complete_func)s() {
    local type value
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            name)
                COMPREPLY+=("$value")
                compopt -o filenames
                if [[ $value == */ ]]; then compopt -o nospace; fi
                ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(IFS=$'\\n'; COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD %(complete_var)s=bash_complete "$1")
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@add_completion_class
class Bash(BashComplete):
    """What `_UPLOADER_COMPLETE=bash_source` prints, and asks."""

    source_template = _SOURCE

    def format_completion(self, item: "CompletionItem[Any]") -> str:
        return f"{'name' if item.is_name else item.type},{item.value}"
