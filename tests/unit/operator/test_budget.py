"""Bytes that are handed out: never too many, to each in turn, and taken back whatever happens."""

import asyncio
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from looptime import run_jumping
from outhaul_grpc import protocol
from outhaul_operator import budget
from outhaul_operator.budget import Budget, BudgetError

requests = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.integers(0, 6),
        st.floats(0, 3),
        st.floats(0, 3),
        st.none() | st.floats(0, 5),
    ),
    max_size=30,
)
"""Who asks for how much, when, for how long, and when it loses patience."""


class Meter:
    """What is held now and was held at most, by namespace and in all."""

    def __init__(self, given_out: Budget) -> None:
        self.budget = given_out
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.most_in_all = 0
        self.served = 0

    async def hold(self, namespace: str, amount: int, seconds: float) -> None:
        """Holds an amount for a time."""
        async with self.budget.reserve(namespace, amount):
            self.served += 1
            self.now[namespace] += amount
            self.most[namespace] = max(self.most[namespace], self.now[namespace])
            self.most_in_all = max(self.most_in_all, self.now.total())
            try:
                await asyncio.sleep(seconds)
            finally:
                self.now[namespace] -= amount


@given(requests)
def test_never_too_much_and_nothing_lost(plan: list[tuple[str, int, float, float, float | None]]) -> None:
    """Whoever asks, gives up or is served: bounds hold, everybody patient is served, and all of it comes back."""

    async def one(meter: Meter, request: tuple[str, int, float, float, float | None]) -> None:
        namespace, amount, at, held, patience = request
        await asyncio.sleep(at)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await meter.hold(namespace, amount, held)

    async def main() -> None:
        meter = Meter(Budget(capacity=10, share=6))
        async with asyncio.TaskGroup() as group:
            for request in plan:
                group.create_task(one(meter, request))
        assert meter.most_in_all <= 10
        assert all(most <= 6 for most in meter.most.values())
        assert meter.served >= sum(patience is None for *_, patience in plan)
        assert meter.budget.free == 10
        async with meter.budget.reserve("a", 6), meter.budget.reserve("b", 4):
            assert meter.budget.free == 0

    run_jumping(main())


def test_a_namespace_with_many_does_not_keep_others_waiting() -> None:
    """Who comes from elsewhere waits for no more than what is held, however many wait of one namespace."""

    async def main() -> None:
        meter = Meter(Budget(capacity=12, share=6))
        crowd = [asyncio.create_task(meter.hold("crowd", 3, 60.0)) for _ in range(1000)]
        await asyncio.sleep(0)
        async with asyncio.timeout(1):
            await meter.hold("other", 6, 0)
        assert meter.now == {"crowd": 6, "other": 0}
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        assert meter.budget.free == 12

    run_jumping(main())


def test_namespaces_take_turns() -> None:
    """Where everybody wants everything, each namespace has its turn before one has a second one."""

    async def main() -> None:
        given_out = Budget(capacity=1, share=1)
        order = []

        async def one(namespace: str) -> None:
            async with given_out.reserve(namespace, 1):
                order.append(namespace)
                await asyncio.sleep(1)

        await asyncio.gather(*map(one, "xaaaabbc"))
        assert "".join(order) == "xabcabaa"

    run_jumping(main())


def test_a_large_one_is_not_overtaken_for_ever() -> None:
    """Small ones that keep coming do not starve a large one."""

    async def main() -> None:
        meter = Meter(Budget(capacity=10, share=10))

        async def stream(namespace: str) -> None:
            while True:
                await meter.hold(namespace, 1, 1.0)

        small = [asyncio.create_task(stream(f"small-{number}")) for number in range(20)]
        await asyncio.sleep(0.5)
        async with asyncio.timeout(5):
            await meter.hold("large", 10, 1.0)
        for task in small:
            task.cancel()
        await asyncio.gather(*small, return_exceptions=True)

    run_jumping(main())


def test_more_than_a_share_is_refused() -> None:
    """What could never be given is not waited for."""

    async def main() -> None:
        with pytest.raises(BudgetError, match="7 bytes are more than a share of 6"):
            async with Budget(capacity=10, share=6).reserve("a", 7):
                pass

    run_jumping(main())


def test_every_run_fits() -> None:
    """The largest run that an agent may announce fits into a share."""
    assert budget.weight(protocol.MAX_OUTPUTS, protocol.MAX_TOTAL_BYTES) <= budget.SHARE
    assert budget.weight(0, 0) == 0
