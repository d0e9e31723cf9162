"""The subcommands of `blobgc`, a file each.

The file's name is the command's (a dash stands for an underscore), the first line of its docstring
is the help, and it has two functions: `arguments(parser)`, which adds what the command takes, and
`run(options)`, which returns the exit code. Nothing else is changed when one is added. Most of them
call one function of the database and show its rows: see blobgc/show.py.
"""
