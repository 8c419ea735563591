"""The work queue, in loops whose time jumps: nothing sleeps."""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from looptime import run_jumping
from outhaul_operator.queue import FIRST_DELAY_S, LONGEST_DELAY_S, Queue, backoff
from outhaul_operator.turns import Turns

Work = Callable[[str], Awaitable[float | None]]


class Worker:
    """Work that takes a while and notes when it was at what; its queue is made with `queue`."""

    def __init__(self, duration: float = 1.0) -> None:
        self.duration = duration
        self.starts: list[tuple[float, str]] = []
        self.at_once: dict[str, int] = {}
        self.most_at_once = 0
        self.reports: list[tuple[float, str, Exception, int]] = []
        self.failures_left: dict[str, int] = {}
        self.again_after: list[float | None] = []

    def queue(self, concurrency: int = 16) -> Queue[str]:
        """Returns a queue that this works for, whose keys are grouped by their first letter; call it in the loop."""
        return Queue(self.work, self.report, concurrency=concurrency, group=lambda key: key[:1])

    async def work(self, key: str) -> float | None:
        """Works on a key."""
        self.starts.append((now(), key))
        self.at_once[key] = self.at_once.get(key, 0) + 1
        assert self.at_once[key] == 1, "a key is worked on twice at a time"
        self.most_at_once = max(self.most_at_once, sum(self.at_once.values()))
        try:
            await asyncio.sleep(self.duration)
        finally:
            self.at_once[key] -= 1
        if self.failures_left.get(key, 0):
            self.failures_left[key] -= 1
            raise ValueError(key)
        return self.again_after.pop(0) if self.again_after else None

    def report(self, key: str, error: Exception, failures: int) -> None:
        """Takes a report."""
        self.reports.append((now(), key, error, failures))

    def times(self, key: str = "a") -> list[float]:
        """Returns when the work on a key began."""
        return [time for time, one in self.starts if one == key]


def now() -> float:
    """Returns the loop's time."""
    return asyncio.get_running_loop().time()


def test_a_key_is_worked_on() -> None:
    """What is added is worked on once, at once."""

    async def main() -> None:
        worker = Worker()
        worker.queue().add("a")
        await asyncio.sleep(100)
        assert worker.times() == [0]

    run_jumping(main())


def test_many_adds_are_one_look() -> None:
    """A key that is added again before its turn is worked on once."""

    async def main() -> None:
        worker = Worker()
        queue = worker.queue(concurrency=1)
        for key in ("a", "b", "b", "b"):
            queue.add(key)
        await asyncio.sleep(100)
        assert worker.starts == [(0, "a"), (1, "b")]

    run_jumping(main())


def test_what_comes_meanwhile_is_one_more_look() -> None:
    """A key that is added while it is worked on, however often, is worked on once more afterwards."""

    async def main() -> None:
        worker = Worker()
        queue = worker.queue()
        queue.add("a")
        await asyncio.sleep(0.5)
        for _ in range(3):
            queue.add("a")
        await asyncio.sleep(100)
        assert worker.times() == [0, 1]
        assert len(queue) == 0

    run_jumping(main())


def test_keys_do_not_wait_for_each_other() -> None:
    """A key that is slow or fails holds up no other."""

    async def main() -> None:
        worker = Worker(duration=50)
        worker.failures_left["a"] = 1
        queue = worker.queue()
        queue.add("a")
        await asyncio.sleep(1)
        queue.add("b")
        await asyncio.sleep(1)
        assert worker.times("b") == [1]
        assert len(queue) == 2
        await queue.close()

    run_jumping(main())


def test_no_more_keys_at_a_time_than_allowed() -> None:
    """The rest waits for its turn, and gets it in order."""

    async def main() -> None:
        worker = Worker()
        queue = worker.queue(concurrency=3)
        keys = [f"k{index}" for index in range(10)]
        for key in keys:
            queue.add(key)
        await asyncio.sleep(100)
        assert worker.most_at_once == 3
        assert [key for _, key in worker.starts] == keys

    run_jumping(main())


def test_a_key_that_wants_to_be_called_again_is() -> None:
    """The seconds that work returns are waited from its end."""

    async def main() -> None:
        worker = Worker()
        worker.again_after = [10.0, None]
        worker.queue().add("a")
        await asyncio.sleep(100)
        assert worker.times() == [0, 11]

    run_jumping(main())


def test_a_look_makes_a_planned_one_needless() -> None:
    """A key that is added before its time is worked on then, and not again at its time."""

    async def main() -> None:
        worker = Worker()
        worker.again_after = [10.0, None]
        queue = worker.queue()
        queue.add("a")
        await asyncio.sleep(5)
        queue.add("a")
        await asyncio.sleep(100)
        assert worker.times() == [0, 5]

    run_jumping(main())


def test_a_later_plan_replaces_an_earlier_one() -> None:
    """There is one plan for a key, the last."""

    async def main() -> None:
        worker = Worker()
        queue = worker.queue()
        queue.add_after("a", 5)
        queue.add_after("a", 7)
        await asyncio.sleep(100)
        assert worker.times() == [7]

    run_jumping(main())


def test_a_failure_is_reported_and_tried_again() -> None:
    """Each failure is reported with its count, and each pause is longer than the one before."""

    async def main() -> None:
        worker = Worker(duration=0)
        worker.failures_left["a"] = 6
        worker.queue().add("a")
        await asyncio.sleep(1000)
        assert [(key, failures) for _, key, _, failures in worker.reports] == [("a", count) for count in range(1, 7)]
        times = worker.times()
        pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
        expected = [FIRST_DELAY_S * 2**count for count in range(6)]
        assert all(least <= pause <= 1.5 * least for least, pause in zip(expected, pauses, strict=True))

    run_jumping(main())


def test_a_failure_may_wait_for_so_long_at_most() -> None:
    """Where somebody has to look in time, the pauses do not grow beyond that."""

    async def main() -> None:
        worker = Worker(duration=0)
        worker.failures_left["a"] = 9
        Queue(worker.work, worker.report, patience=lambda _: 3).add("a")
        await asyncio.sleep(100)
        pauses = [later - earlier for earlier, later in itertools.pairwise(worker.times())]
        assert len(pauses) == 9
        assert all(pause <= 3.001 for pause in pauses)
        assert pauses[-1] == pytest.approx(3)

    run_jumping(main())


def test_success_forgets_failures() -> None:
    """After a success the next failure is a first one."""

    async def main() -> None:
        worker = Worker(duration=0)
        worker.failures_left["a"] = 3
        queue = worker.queue()
        queue.add("a")
        await asyncio.sleep(1000)
        worker.failures_left["a"] = 1
        queue.add("a")
        await asyncio.sleep(1000)
        assert [failures for *_, failures in worker.reports] == [1, 2, 3, 1]

    run_jumping(main())


def test_a_change_does_not_wait_for_the_back_off() -> None:
    """A key that is added while it waits after a failure is tried at once; its failures still count."""

    async def main() -> None:
        worker = Worker(duration=0)
        worker.failures_left["a"] = 10
        queue = worker.queue()
        queue.add("a")
        await asyncio.sleep(0.1)
        queue.add("a")
        await asyncio.sleep(0.1)
        assert [failures for *_, failures in worker.reports] == [1, 2]
        await queue.close()

    run_jumping(main())


def test_work_that_was_cancelled_by_itself_is_tried_again() -> None:
    """A cancellation that the queue has not asked for, as of a call on a connection that closes, is a failure."""

    async def main() -> None:
        calls: list[float] = []
        reports: list[int] = []

        async def work(_key: str) -> None:
            calls.append(now())
            if len(calls) == 1:
                raise asyncio.CancelledError

        queue = Queue[str](work, lambda _key, _error, failures: reports.append(failures))
        queue.add("a")
        await asyncio.sleep(100)
        assert len(calls) == 2
        assert reports == [1]

    run_jumping(main())


def test_closing_ends_everything() -> None:
    """Closing waits for the end of what was cancelled; afterwards nothing starts any more."""

    async def main() -> None:
        ended: list[str] = []
        worker = Worker()

        async def work(key: str) -> float | None:
            try:
                return await worker.work(key)
            finally:
                ended.append(key)

        queue = Queue[str](work, worker.report, concurrency=1)
        queue.add("a")
        queue.add("b")
        queue.add_after("c", 3)
        await asyncio.sleep(0.5)
        queue.add("a")
        await queue.close()
        queue.add("d")
        queue.add_after("e", 1)
        await asyncio.sleep(100)
        assert worker.starts == [(0, "a")]
        assert ended == ["a"]
        assert worker.reports == []
        assert len(queue) == 0

    run_jumping(main())


# -- any order of events

EVENTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "after"]), st.floats(0, 4)),
    min_size=1,
    max_size=12,
)


@given(EVENTS, st.integers(1, 3), st.dictionaries(st.sampled_from("abc"), st.integers(0, 3)))
def test_the_last_change_is_never_missed(
    events: list[tuple[str, str, float]], concurrency: int, failures: dict[str, int]
) -> None:
    """Whatever comes when, a look at each key that succeeds begins after the key was last added."""

    async def main() -> None:
        worker = Worker()
        worker.failures_left = dict(failures)
        queue = worker.queue(concurrency)
        last: dict[str, float] = {}
        for key, how, pause in events:
            if how == "add":
                queue.add(key)
            else:
                queue.add_after(key, 2)
            last[key] = now()
            await asyncio.sleep(pause)
        await asyncio.sleep(1000)
        assert len(queue) == 0
        failed = [(time, key) for time, key, *_ in worker.reports]
        for key, time in last.items():
            begun = [start for start in worker.times(key) if (start + worker.duration, key) not in failed]
            assert begun
            assert max(begun) >= time
        await queue.close()

    run_jumping(main())


# -- the pauses


@pytest.mark.parametrize(
    ("failures", "least"),
    [(1, 0.5), (2, 1), (3, 2), (10, 256), (11, LONGEST_DELAY_S), (10**6, LONGEST_DELAY_S)],
)
def test_pauses_double_up_to_a_bound(failures: int, least: float) -> None:
    """Each pause is twice the one before, until the longest."""
    assert backoff(failures, lambda: 0.0) == least
    assert backoff(failures, lambda: 1.0) == 1.5 * least


@given(st.integers(1, 100))
def test_pauses_are_spread(failures: int) -> None:
    """A pause is up to half longer by chance, so that many keys do not come back together."""
    least = backoff(failures, lambda: 0.0)
    assert least <= backoff(failures) <= 1.5 * least


def test_a_thousand_keys_of_one_group_hold_up_none_of_another() -> None:
    """Where many keys wait, groups take turns: the only key of a group comes next, those of one group in order."""
    worker = Worker()

    async def scenario() -> None:
        queue = worker.queue(concurrency=2)
        for number in range(1000):
            queue.add(f"a{number}")
        await asyncio.sleep(0.5)
        queue.add("b")
        queue.add("c")
        await asyncio.sleep(10)
        await queue.close()

    run_jumping(scenario())
    begun = [key for _, key in worker.starts]
    assert begun[:8] == ["a0", "a1", "a2", "b", "c", "a3", "a4", "a5"]


def test_who_gives_up_waiting_takes_no_place() -> None:
    """A key whose task is cancelled while it waits for its turn, or just as it comes, leaves the turn to the next."""

    async def scenario() -> list[str]:
        turns, served = Turns(1), []

        async def work(name: str) -> None:
            async with turns.place(name):
                served.append(name)
                await asyncio.sleep(1)
            if name == "first":
                tasks[2].cancel()

        tasks = [asyncio.create_task(work(name)) for name in ("first", "gone", "late", "last")]
        await asyncio.sleep(0.5)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        async with asyncio.timeout(1), turns.place("after"):
            return served

    assert run_jumping(scenario()) == ["first", "last"]


def test_what_waits_and_what_is_worked_on_is_told() -> None:
    """The queue tells how many keys wait for their turn, for how long, and how long the work on one takes."""

    async def main() -> None:
        worker = Worker(duration=10)
        queue = worker.queue(concurrency=1)
        assert (queue.waiting(), queue.longest_wait(), queue.longest_work()) == (0, 0, 0)
        queue.add("a")
        queue.add("b")
        await asyncio.sleep(4)
        queue.add("c")
        await asyncio.sleep(2)
        assert (queue.waiting(), queue.longest_wait(), queue.longest_work()) == (2, 6, 6)
        await asyncio.sleep(6)
        assert (queue.waiting(), queue.longest_wait(), queue.longest_work()) == (1, 8, 2)
        await asyncio.sleep(100)
        assert (queue.waiting(), queue.longest_wait(), queue.longest_work()) == (0, 0, 0)

    run_jumping(main())


def test_work_that_takes_too_long_is_broken_off() -> None:
    """Work beyond its time is cancelled, reported and tried again, as any other that fails."""

    async def main() -> None:
        worker = Worker(duration=100)
        queue: Queue[str] = Queue(worker.work, worker.report, longest_s=30)
        queue.add("a")
        await asyncio.sleep(35)
        ((when, key, error, failures),) = worker.reports
        assert (when, key, type(error), failures) == (30, "a", TimeoutError, 1)
        assert len(worker.starts) == 2
        assert queue.stuck() is None
        await queue.close()

    run_jumping(main())


def test_work_that_cannot_be_broken_off_is_stuck() -> None:
    """Where work goes on for twice its time, nothing but a restart helps."""

    async def main() -> None:
        async def stubborn(_: str) -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)
            await asyncio.sleep(1000)

        queue: Queue[str] = Queue(stubborn, lambda *_: None, longest_s=30)
        queue.add("a")
        await asyncio.sleep(59)
        assert queue.stuck() is None
        await asyncio.sleep(2)
        assert queue.stuck() == "something is worked on for 61 s, and does not end"

    run_jumping(main())


def test_waiting_for_another_turn_is_no_work() -> None:
    """A key that has to be worked on once more and waits long for its turn is not taken for one that is stuck."""

    async def main() -> None:
        worker = Worker(duration=20)
        queue: Queue[str] = Queue(worker.work, worker.report, concurrency=1, longest_s=30)
        for key in ("a", "b", "c", "d", "e"):
            queue.add(key)
        await asyncio.sleep(10)
        queue.add("a")
        await asyncio.sleep(75)
        assert (queue.longest_work(), queue.stuck()) == (5, None)
        await queue.close()

    run_jumping(main())


class SlowlyError(Exception):
    """Says when to come back."""

    retry_after_s = 45.0


def test_an_error_may_say_when_to_come_back() -> None:
    """A key is not tried again before the time that the error itself names, and a neighbour does not wait for that."""

    async def main() -> None:
        starts: list[tuple[float, str]] = []

        async def work(key: str) -> None:
            starts.append((now(), key))
            if key == "a" and len(starts) < 3:
                raise SlowlyError

        queue: Queue[str] = Queue(work, lambda *_: None, concurrency=1)
        queue.add("a")
        queue.add("b")
        await asyncio.sleep(100)
        assert starts == [(0, "a"), (0, "b"), (45, "a")]

    run_jumping(main())


def test_no_group_takes_all_places() -> None:
    """Where the work on many keys of one group hangs, those of another are worked on at once."""

    async def main() -> None:
        starts: list[tuple[float, str]] = []

        async def work(key: str) -> None:
            starts.append((now(), key))
            await asyncio.sleep(1000 if key.startswith("slow") else 0)

        queue: Queue[str] = Queue(work, lambda *_: None, concurrency=8, share=2, group=lambda key: key[:1])
        for number in range(20):
            queue.add(f"slow {number}")
        for number in range(20):
            queue.add(f"quick {number}")
        await asyncio.sleep(1)
        assert sum(key.startswith("quick") for _, key in starts) == 20
        assert sum(key.startswith("slow") for _, key in starts) == 2
        await asyncio.sleep(1000)
        assert sum(key.startswith("slow") for _, key in starts) == 4

    run_jumping(main())
