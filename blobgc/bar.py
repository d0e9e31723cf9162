"""A bar on the terminal, for `blobgc run --once`."""

from collections import Counter

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn


class Bar:
    """What was due at first is the whole; a row that is deleted becomes an object to delete."""

    def __init__(self, whole: int) -> None:
        self.whole = whole
        self.progress = Progress(
            BarColumn(bar_width=30),
            TextColumn("{task.fields[rows]:,} rows, {task.fields[objects]:,} objects, "
                       "{task.fields[megabytes]:,.1f} MB"),
            console=Console(stderr=True))
        self.task = self.progress.add_task("", total=max(whole, 1), rows=0, objects=0,
                                           megabytes=0.0)
        self.progress.start()

    def draw(self, done: Counter[str]) -> None:
        steps = done["rows_reviewed"] + done["objects_deleted"] + done["objects_failed"]
        total = max(self.whole + done["rows_deleted"], 1)
        self.progress.update(
            self.task, total=total, completed=min(steps, total), rows=done["rows_deleted"],
            objects=done["objects_deleted"], megabytes=done["bytes_deleted"] / 1e6)

    def end(self, done: Counter[str]) -> None:
        self.draw(done)
        self.progress.stop()
