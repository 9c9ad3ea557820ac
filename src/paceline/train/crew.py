"""Workers who do something together, and either all succeed or all say why not."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from paceline.reading import visible
from paceline.teams import Team, Workers


class CheckpointError(ValueError):
    """A checkpoint was not saved or not loaded. All workers raise it with the same sentence."""

    def __init__(self, sentence: str) -> None:
        # It may name what somebody else's file says, and errors end on a terminal.
        super().__init__(visible(sentence))


class Crew:
    """The workers who save or load together, over a team of their own if need be."""

    def __init__(self, workers: Workers, team: Team | None = None) -> None:
        self._workers = workers
        self._team = workers.world if team is None else team
        self.rank = workers.world.rank
        self.leads_node = workers.node.rank == 0
        self.nodes = [list(ranks) for ranks in workers.ranks_by_node]

    def share(self, work: Callable[[], Any], *, task: str) -> list[Any]:
        """Do ``work`` on every worker; what it returned on each, by rank, as JSON carries it.

        None stands for workers that are lost, in a job that survives this. Where work fails,
        nobody is left waiting: all raise the same error, which names the first worker that
        failed, its ``task`` and the cause.
        """
        cause: Exception | None = None
        try:
            answer = {"value": work()}
        except Exception as error:
            cause, answer = error, {"failure": f"{task}: {_in_words(error)}"}
        answers = self._gather(answer)
        failed = [rank for rank, answer in enumerate(answers) if answer and "failure" in answer]
        if failed:
            others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            who, failure = self._name(failed[0]), answers[failed[0]]["failure"]
            raise CheckpointError(f"{who}{others} could not {failure}") from cause
        return [answer.get("value") for answer in answers]

    def _gather(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        everybody = self._team.gather(json.dumps(answer).encode())
        return [json.loads(data) if data else {} for data in everybody]

    def _name(self, rank: int) -> str:
        node = next(i for i, ranks in enumerate(self.nodes) if rank in ranks)
        return f"worker {rank} on {self._workers.node_names[node]}"


def _in_words(error: Exception) -> str:
    """An error's cause on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"
