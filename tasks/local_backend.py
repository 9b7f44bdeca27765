"""Run jobs in this process, without Ray: the same results, for debugging and for machines that have no Ray."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.state import Finished
from tasks.step import Step
from unlearn_core.errors import BadInput
from unlearn_core.precision import Precision

if TYPE_CHECKING:
    from tasks.worker import Worker


class LocalBackend:
    """One worker, in this process."""

    def __init__(
        self,
        root: Path,
        device: str = "cpu",
        threads: int = 1,
        deterministic: bool = False,
        precision: Precision = Precision.FLOAT32,
    ) -> None:
        from tasks.worker import Worker  # loads torch, which LocalActor does without

        self._worker: Worker = Worker(root, device, threads, deterministic, precision)
        if refusal := self._worker.ready():
            raise BadInput(refusal)
        self.on_gpu: bool = device.startswith("cuda")
        self._job: Sequence[Step] | None = None

    def idle(self) -> Sequence[Hashable]:
        return [] if self._job else [0]

    def submit(self, worker: Hashable, steps: Sequence[Step]) -> None:
        self._job = steps

    def wait(self, seconds: float) -> Sequence[Finished]:
        if self._job is None:
            return []
        job, self._job = self._job, None
        return [Finished(0, job, self._worker.run(job))]

    def waiting_for_a_place(self) -> int:
        return 0

    def set_aside(self, worker: Hashable) -> str:
        raise RuntimeError("the only worker cannot be set aside")

    def close(self) -> None:
        pass


class LocalActor:
    """An object of any class in this process, called as ``RayActor`` calls it."""

    def __init__(self, cls: type, *arguments: Any) -> None:
        self._object: Any = cls(*arguments)

    def call(self, method: str, *arguments: Any) -> LocalAnswer:
        """Answer the call now."""
        return LocalAnswer(getattr(self._object, method)(*arguments))

    def close(self) -> None:
        pass


class LocalAnswer:
    """An answer that is there, as ``RayAnswer`` gives one that may take a while."""

    def __init__(self, value: Any) -> None:
        self._value: Any = value

    def ready(self) -> bool:
        return True

    def get(self, seconds: float) -> Any:
        return self._value
