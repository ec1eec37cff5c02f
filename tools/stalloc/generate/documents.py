#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the man pages and the completions for bash from the commands' own help.

  documents.py VERSION FOLDER STALLOC_PLAN...

STALLOC_PLAN is the built command, after an emulator if it needs one. FOLDER gets stalloc.1, stalloc-plan.1,
stalloc.bash and stalloc-plan.bash.
"""

import argparse
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from stalloc import cli, planner  # noqa: E402

def escaped(text):
    """`text`, escaped so that roff shows it unchanged."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return "\n".join("\\&" + line if line.startswith(".") else line for line in text.splitlines())


def paragraphs(text):
    """`text` as lines of roff: paragraphs are filled, lines that begin with spaces stay as they are."""
    out = []
    for part in re.split(r"\n\n+", text.strip("\n")):
        lines = part.splitlines()
        literal = [line.startswith(" ") for line in lines]
        for at, line in enumerate(lines):
            if literal[at] and (at == 0 or not literal[at - 1]):
                out.append(".PP" if at == 0 else "")
                out.append(".nf")
            elif at == 0:
                out.append(".PP")
            out.append(escaped(line.strip() if not literal[at] else line.rstrip()))
            if literal[at] and (at + 1 == len(lines) or not literal[at + 1]):
                out.append(".fi")
    return [line for line in out if line]


def entry(name, text):
    return [".TP", f".B {escaped(name)}", escaped(" ".join(text.split())) or "\\&"]


def head(name, version, purpose):
    return [f'.TH {name.upper()} 1 "" "stalloc {version}" "User commands"', ".SH NAME",
            f"{escaped(name)} \\- {escaped(purpose)}"]


class Option:
    """One line of a command's help."""

    def __init__(self, flags, value, text):
        self.flags, self.value, self.text = flags, value, text

    @property
    def name(self):
        return ", ".join(self.flags) + (f" {self.value}" if self.value else "")


def options_of(parser):
    """A parser's options, without positional arguments."""
    found = []
    for action in parser._actions:  # the module has no public list of them
        if action.option_strings and action.help is not argparse.SUPPRESS:
            value = action.metavar or ("|".join(action.choices) if action.choices else action.dest.upper())
            text = (action.help or "") % {"prog": "stalloc"} if "%" in (action.help or "") else action.help or ""
            found.append(Option(action.option_strings, "" if action.nargs == 0 else value, text))
    return found


def help_of(tool, *command):
    return subprocess.run([*tool, *command, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout


def sections_of(text):
    """The entries of each section of stalloc-plan's help (tools/stalloc-plan/help.cpp), as [name, text]."""
    sections, entries = {}, None
    for line in text.splitlines():
        if re.fullmatch(r"[A-Z][a-z]+:", line):
            entries = sections.setdefault(line[:-1], [])
        elif entries is not None and re.match(r"  \S", line):
            name, _, rest = line.strip().partition("  ")
            entries.append([name, rest.strip()])
        elif entries and line.startswith("     "):
            entries[-1][1] += " " + line.strip()
        elif line:
            entries = None
    return sections


def tool_options(text):
    """The options in stalloc-plan's help, where an entry is "-o,--output TEXT" with a text."""
    found = []
    for name, meaning in sections_of(text).get("Options", []):
        flags, _, value = name.partition(" ")
        found.append(Option(flags.split(","), value.split(":")[0].split(" ")[0], meaning))
    return found


def stalloc_man(version, parser):
    subparsers = next(action for action in parser._actions if action.dest == "subcommand")
    purposes = {action.dest: action.help for action in subparsers._choices_actions}
    out = head("stalloc", version, "device memory without fragmentation, for programs that use CUDA")
    out += [".SH SYNOPSIS", ".B stalloc", ".I COMMAND", "[options] [\\-\\- PROGRAM ...]", ".SH DESCRIPTION"]
    out += paragraphs(parser.description) + [".SH COMMANDS"]
    for name, command in subparsers.choices.items():
        out += [f'.SS "stalloc {name}"']
        if name in planner.COMMANDS:
            out += paragraphs(purposes[name][0].upper() + purposes[name][1:] + ": becomes stalloc-plan, see "
                              "stalloc-plan(1).")
            continue
        out += paragraphs(command.description or purposes[name])
        for option in options_of(command):
            out += entry(option.name, option.text)
        out += paragraphs(command.epilog) if command.epilog else []
    out += [".SH ENVIRONMENT"]
    for name, text in (("STALLOC_LIBRARY", "The library to preload, in place of the one that came with the command."),
                       ("STALLOC_PLAN", "The plan of `stalloc run` and `stalloc env` if --plan is not given."),
                       ("STALLOC_TRACE", "The trace of `stalloc record` if --output is not given."),
                       ("STALLOC_STATISTICS", "A folder in which processes show their figures. Whoever sets it reads them "
                        "there, and no report is printed at the end."),
                       ("XDG_RUNTIME_DIR", "The folder for the figures of running programs; without it, they are in "
                        "/tmp/stalloc-UID."),
                       ("NO_COLOR", "If it is set, there are no colors on a terminal either.")):
        out += entry(name, text)
    out += paragraphs("The sources' docs/environment.md describes the variables that the library itself reads.")
    out += [".SH EXIT STATUS"]
    out += paragraphs("run and record exit with the program's own status, with 128+n if signal n ended the program, and with "
                      "126 or 127 if it could not be started. The other commands exit with 0 when all is done, with 1 if "
                      "something prevents it (one line on standard error says what), and with 2 after wrong usage.")
    return out + [".SH SEE ALSO", ".BR stalloc\\-plan (1)"]


def tool_man(version, tool):
    text = help_of(tool)
    description = text[:text.index("\nUsage:")]
    out = head("stalloc-plan", version, "plan the device memory of a recorded run")
    out += [".SH SYNOPSIS", ".B stalloc\\-plan", "TRACE ... \\-o PLAN [options]", ".br", ".B stalloc\\-plan",
            "show|check|compare|report ...", ".SH DESCRIPTION", *paragraphs(description), ".SH OPTIONS"]
    for option in tool_options(text):
        out += entry(option.name, option.text)
    out += [".SH COMMANDS"]
    for name, purpose in sections_of(text)["Subcommands"]:
        out += [f'.SS "stalloc\\-plan {escaped(name)}"', *paragraphs(purpose + ".")]
        commands = help_of(tool, name)
        for at, meaning in sections_of(commands).get("Positionals", []):
            out += entry(at.split(" ")[0], meaning)
        for option in tool_options(commands):
            out += entry(option.name, option.text)
    out += [".SH EXIT STATUS", *paragraphs("0 done, 1 bad input or an unsound plan (one line on standard error says "
                                           "why), 2 wrong usage.")]
    return out + [".SH SEE ALSO", ".BR stalloc (1)"]


def flags(options):
    return " ".join(flag for option in options for flag in option.flags)


COMPLETION = """\
# Completion of {name} for bash; written by tools/stalloc/generate/documents.py.
_{function}()
{{
  local word=${{COMP_WORDS[COMP_CWORD]}} command="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${{COMP_WORDS[i]}} in
{passing}      {names}) [ -n "$command" ] || command=${{COMP_WORDS[i]}} ;;
    esac
  done
  local words=""
  case $command in
    "") words="{top}" ;;
{cases}  esac
  # Without a dash a file is meant, which bash completes itself.
  if [ -z "$command" ] || [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  fi
}}
complete -o bashdefault -o default -F _{function} {name}
"""
# After `--` comes the program, which completes as it would without this command.
PASSING = """\
      --)
        if declare -F _command_offset > /dev/null; then
          _command_offset $((i + 1))
        fi
        return
        ;;
"""


def completion(name, top, commands, passing):
    """A completion script. `top`: the words possible before a command; `commands`: the options of each command."""
    cases = "".join(f'    {command}) words="{words}" ;;\n'
                    for command, words in commands.items())
    return COMPLETION.format(name=name, function=name.replace("-", "_"), passing=PASSING if passing else "",
                             names="|".join(commands), cases=cases, top=top)


def main():
    version, folder, tool = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]
    parser, _ = cli.make_parser(cli.present_modules())
    choices = next(action for action in parser._actions if action.dest == "subcommand").choices
    tool_commands = {name: flags(tool_options(help_of(tool, name)))
                     for name, _ in sections_of(help_of(tool))["Subcommands"]}
    tool_top = flags(tool_options(help_of(tool)))
    commands = {name: (tool_commands.get(name, tool_top) if name in planner.COMMANDS else flags(options_of(command)))
                for name, command in choices.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (("stalloc.1", stalloc_man(version, parser)), ("stalloc-plan.1", tool_man(version, tool))):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "stalloc.bash").write_text(
        completion("stalloc", " ".join([*commands, "--help", "--version"]), commands, True), encoding="utf-8")
    (folder / "stalloc-plan.bash").write_text(
        completion("stalloc-plan", " ".join([*tool_commands, tool_top]), tool_commands, False), encoding="utf-8")


if __name__ == "__main__":
    main()
