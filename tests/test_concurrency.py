"""Many writers at once: processes, threads and forks, on one home and on one checkpoint."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from counts import full
from power_loss import apart, at_once, audit

from syncd import CheckpointExistsError, CheckpointService, StaleBaseError

PROCESSES, EACH = 10, 200


def create(service: CheckpointService, count: int, agent: str = "agent") -> list[str]:
    made = (service.create_checkpoint("task", agent) for _ in range(count))
    return [checkpoint.metadata.checkpoint_id for checkpoint in made]


def assert_sound(home: Path, *ids: list[str]) -> None:
    """Everything acknowledged is there once, in one unbroken, unforked line, and readable."""
    found = audit(home)
    assert found.problems == []
    assert sorted(found.created) == sorted(chain(*ids))
    assert [meta["task_seq"] for meta in found.metas] == [*range(1, len(found.metas) + 1)]
    parents = [meta["parent"] for meta in found.metas if meta["parent"]]
    assert len(parents) == len(set(parents))
    reader = CheckpointService(home=home)
    history = reader.get_checkpoint_history("task", limit=len(found.created) + 1)
    reader.close()
    assert [c.metadata.checkpoint_id for c in reversed(history)] == found.created


def test_the_reads_of_a_snapshot_see_one_moment(home: Path, service: CheckpointService) -> None:
    other = CheckpointService(home=home)
    store = service.node.store
    with store.snapshot(), store.snapshot():
        before = store.row("counts_here")
        create(other, 1)
        assert store.row("counts_here") == before
    assert store.row("counts_here") != before
    create(service, 1)
    other.close()


# --- processes --------------------------------------------------------------------------------


def processes_that_create(home: Path, processes: int, each: int) -> list[list[str]]:
    def work(number: int) -> list[str]:
        service = CheckpointService(home=home)
        ids = create(service, each, f"agent {number}")
        service.close()
        return ids

    return at_once(processes, work)


def test_ten_processes_at_once_lose_nothing_and_leave_no_gap(
    home: Path, service: CheckpointService
) -> None:
    ids = apart(processes_that_create, home, PROCESSES, EACH)
    assert sum(map(len, ids)) == PROCESSES * EACH
    assert_sound(home, *ids)


def races_for_a_new_home(homes: list[Path]) -> list[list[tuple[str, str, str]]]:
    def work(home: Path, number: int) -> tuple[str, str, str]:
        service = CheckpointService(home=home)
        made = service.create_checkpoint("task", "agent").metadata.checkpoint_id
        final = service.finalize_checkpoint(made)
        service.close()
        return made, final.revision, service.node.key.public().hex()

    work(homes[0].with_name("rehearsal"), 0)  # with all imports done, the race is closer
    return [at_once(PROCESSES, partial(work, home)) for home in homes]


def test_the_first_use_of_a_home_by_ten_processes_at_once_makes_one_device_and_one_key(
    tmp_path: Path,
) -> None:
    homes = [tmp_path / f"home {number}" for number in range(full(10, 100))]
    for home, outcomes in zip(homes, apart(races_for_a_new_home, homes), strict=True):
        made, finals, keys = zip(*outcomes, strict=True)
        found = audit(home)
        assert found.problems == []
        assert sorted(found.created) == sorted(made)
        assert sorted(found.revisions) == sorted((*made, *finals))
        assert len(set(keys)) == 1
        assert [path.name for path in (home / "keys").iterdir()] == ["signing.pem"]


def two_services_beside_another_process(home: Path) -> list[list[str]]:
    asked, ask = os.pipe()
    answered, answer = os.pipe()

    def work(number: int) -> list[str]:
        first = CheckpointService(home=home)
        ids = create(first, 1, "first")
        second = CheckpointService(home=home)
        for _ in range(3):
            os.write(ask, b".")
            os.read(answered, 1)
            ids += create(first, 5, "first") + create(second, 5, "second")
        second.close()
        ids += create(first, 5, "first")
        first.close()
        return ids

    others: list[str] = []

    def come_and_go() -> None:
        for _ in range(3):
            os.read(asked, 1)
            service = CheckpointService(home=home)
            others.extend(create(service, 5, "other"))
            service.close()
            os.write(answer, b".")

    return [*at_once(1, work, meanwhile=come_and_go), others]


def test_two_services_in_one_process_keep_their_hold_on_the_database(home: Path) -> None:
    """A process that closes any descriptor of a file loses all its locks on it: opening the
    database by hand lets another process remove the log that this one goes on writing."""
    assert_sound(home, *apart(two_services_beside_another_process, home))


# --- threads ----------------------------------------------------------------------------------


def test_eight_threads_share_one_service(home: Path, service: CheckpointService) -> None:
    def work(number: int) -> list[str]:
        ids = []
        for _ in range(100):
            ids += create(service, 1, f"agent {number}")
            assert service.get_checkpoint(ids[-1]).metadata.agent_id == f"agent {number}"
            latest = service.get_latest_checkpoint("task")
            assert latest is not None
            assert latest.verified
        return ids

    with ThreadPoolExecutor(8) as threads:
        assert_sound(home, *threads.map(work, range(8)))


def test_the_first_use_of_a_home_by_eight_threads_at_once_makes_one_device(
    tmp_path: Path,
) -> None:
    def work(home: Path, gate: threading.Barrier) -> str:
        gate.wait()
        service = CheckpointService(home=home)
        ids = create(service, 1)
        service.close()
        return ids[0]

    for number in range(full(5, 100)):
        home, gate = tmp_path / f"home {number}", threading.Barrier(8)
        with ThreadPoolExecutor(8) as threads:
            assert_sound(home, [*threads.map(work, [home] * 8, [gate] * 8)])


def test_a_thread_that_fails_inside_its_transaction_takes_no_other_with_it(
    home: Path, service: CheckpointService
) -> None:
    kept = create(service, 1)

    def work(number: int) -> list[str]:
        ids = []
        for _ in range(50):
            if number % 2:
                ids += create(service, 1)
            else:
                with pytest.raises(CheckpointExistsError):
                    service.create_checkpoint("task", "agent", checkpoint_id=kept[0])
        return ids

    with ThreadPoolExecutor(8) as threads:
        assert_sound(home, kept, *threads.map(work, range(8)))


# --- forks ------------------------------------------------------------------------------------


def parent_and_children(home: Path) -> list[list[str]]:
    service = CheckpointService(home=home)
    own = create(service, 1, "parent")
    ids = at_once(
        4,
        lambda number: create(service, 50, f"child {number}"),
        meanwhile=lambda: own.extend(create(service, 50, "parent")),
    )
    own += create(service, 1, "parent")
    service.close()
    return [own, *ids]


def test_a_service_carried_across_a_fork_works_in_parent_and_children(home: Path) -> None:
    assert_sound(home, *apart(parent_and_children, home))


_inherited: list[CheckpointService] = []


def pool_of_forks(home: Path) -> list[list[str]]:
    service = CheckpointService(home=home)
    _inherited.append(service)
    own = create(service, 1, "parent")
    with multiprocessing.get_context("fork").Pool(4) as pool:
        ids = pool.map_async(create_with_the_inherited, range(20))
        own += create(service, 20, "parent")
        created = ids.get()
    service.close()
    return [own, *created]


def create_with_the_inherited(number: int) -> list[str]:
    return create(_inherited[0], 5, f"child {number}")


def test_a_service_carried_into_a_multiprocessing_pool_works_on_both_sides(home: Path) -> None:
    assert_sound(home, *apart(pool_of_forks, home))


def child_that_outlives_the_parents_service(home: Path) -> list[list[str]]:
    service = CheckpointService(home=home)
    own = create(service, 1, "parent")
    parent_closed, closes = os.pipe()
    child_wrote, writes = os.pipe()

    def work(number: int) -> list[str]:
        os.close(closes)
        ids = create(service, 1, "child")
        os.write(writes, b".")
        os.read(parent_closed, 1)
        return ids + create(service, 20, "child")

    def close() -> None:
        os.read(child_wrote, 1)
        service.close()
        os.close(closes)

    return [own, *at_once(1, work, meanwhile=close)]


def test_what_a_forked_child_writes_stays_when_the_parent_closes_its_service(home: Path) -> None:
    """SQLite counts its locks per process and keeps counting after a fork: a connection made in
    the child beside an inherited one holds no lock, and another's close removes its log."""
    assert_sound(home, *apart(child_that_outlives_the_parents_service, home))


def fork_amid_a_write(home: Path) -> list[list[str]]:
    service = CheckpointService(home=home)
    own = create(service, 1, "parent")
    inside, finish = threading.Event(), threading.Event()

    def write_slowly() -> None:
        with service.node.store.transaction():
            inside.set()
            finish.wait(0.5)

    writer = threading.Thread(target=write_slowly)
    writer.start()
    inside.wait()
    # Python 3.12 and newer advise against such a fork; it happens all the same.
    warnings.simplefilter("ignore", DeprecationWarning)
    ids = at_once(1, lambda number: create(service, 5, "child"))
    finish.set()
    writer.join()
    own += create(service, 5, "parent")
    service.close()
    return [own, *ids]


def test_a_fork_amid_another_threads_write_leaves_the_child_able_to_write(home: Path) -> None:
    assert_sound(home, *apart(fork_amid_a_write, home, SYNCD_STORE_BUSY_SECONDS="3"))


def forks_beside_threads(home: Path, forks: int) -> list[list[str]]:
    warnings.simplefilter("ignore", DeprecationWarning)
    service = CheckpointService(home=home)
    done = threading.Event()

    def work(number: int) -> list[str]:
        ids = create(service, 1)
        while not done.is_set():
            ids += create(service, 1, f"agent {number}")
            assert service.get_checkpoint(ids[-1]).verified
        return ids

    with ThreadPoolExecutor(4) as threads:
        written = [threads.submit(work, number) for number in range(4)]
        try:
            children = [at_once(1, lambda number: create(service, 1)) for _ in range(forks)]
        finally:
            done.set()
    service.close()
    return [*(future.result() for future in written), *chain(*children)]


def test_threads_go_on_reading_and_writing_while_another_forks(home: Path) -> None:
    assert_sound(home, *apart(forks_beside_threads, home, full(20, 300)))


def forks_beside_new_services(home: Path, forks: int) -> tuple[list[list[str]], list[str]]:
    warnings.simplefilter("ignore", DeprecationWarning)
    unseen: list[str] = []  # errors that Python tells nobody
    sys.unraisablehook = lambda error: unseen.append(str(error.exc_value))
    sys.setswitchinterval(1e-6)
    done = threading.Event()

    def work(number: int) -> list[str]:
        ids = []
        while not done.is_set():
            services = [CheckpointService(home=home) for _ in range(5)]
            ids += [create(service, 1)[0] for service in services]
            for service in services:
                service.close()
        return ids

    with ThreadPoolExecutor(4) as threads:
        written = [threads.submit(work, number) for number in range(4)]
        try:
            children = [at_once(1, lambda n: create(CheckpointService(home=home), 1))]
            for _ in range(forks):
                at_once(1, lambda number: None)
        finally:
            done.set()
    return [*(future.result() for future in written), *chain(*children)], unseen


def test_services_open_and_close_while_another_thread_forks(home: Path) -> None:
    CheckpointService(home=home).close()
    ids, unseen = apart(forks_beside_new_services, home, full(100, 1_000))
    assert unseen == []
    assert_sound(home, *ids)


def child_that_exits_without_writing(home: Path) -> list[list[str]]:
    service = CheckpointService(home=home)
    own = create(service, 1, "parent")
    held, released = os.pipe()
    if not (idle := os.fork()):
        os.close(released)
        os.read(held, 1)
        sys.exit(0)  # the interpreter's own way out, which closes what is open
    service.close()
    ids_read, ids_written = os.pipe()
    if not (killed := os.fork()):
        os.write(ids_written, "\n".join(create(CheckpointService(home=home), 3)).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(killed, 0)
    os.close(released)
    os.waitpid(idle, 0)
    return [own, os.read(ids_read, 4096).decode().split()]


def test_a_forked_child_that_only_exits_destroys_nothing(home: Path) -> None:
    """Closing an inherited connection removes a log that others have written since."""
    assert_sound(home, *apart(child_that_exits_without_writing, home))


# --- one checkpoint, many who change it -------------------------------------------------------


def updates_on_the_same_bases(home: Path, bases: list[tuple[str, str]]) -> list[list[bool]]:
    def work(number: int) -> list[bool]:
        service = CheckpointService(home=home)
        won = []
        for checkpoint_id, base in bases:
            change = {"execution_state": {"current_focus": f"process {number}"}}
            try:
                service.update_checkpoint(checkpoint_id, change, base=base)
                won.append(True)
            except StaleBaseError:
                won.append(False)
        service.close()
        return won

    return at_once(8, work)


def test_of_all_updates_on_one_base_exactly_one_wins(
    home: Path, service: CheckpointService
) -> None:
    made = [service.create_checkpoint("task", "agent") for _ in range(full(50, 500))]
    bases = [(checkpoint.metadata.checkpoint_id, checkpoint.revision) for checkpoint in made]
    won = apart(updates_on_the_same_bases, home, bases)
    assert [sum(wins) for wins in zip(*won, strict=True)] == [1] * len(bases)
    for (checkpoint_id, _), wins in zip(bases, zip(*won, strict=True), strict=True):
        current = service.get_checkpoint(checkpoint_id)
        assert current.execution_state.current_focus == f"process {wins.index(True)}"
    found = audit(home)
    assert found.problems == []
    assert len(found.revisions) == 2 * len(bases)


def counting_processes(home: Path, checkpoint_id: str, each: int) -> list[int]:
    def work(number: int) -> int:
        service = CheckpointService(home=home)
        refused = counted = 0
        while counted < each:
            current = service.get_checkpoint(checkpoint_id)
            count = current.context_summary.state["count"] + 1
            change = {"context_summary": {"state": {"count": count}}}
            try:
                service.update_checkpoint(checkpoint_id, change, base=current.revision)
                counted += 1
            except StaleBaseError:
                refused += 1
        service.close()
        return refused

    return at_once(8, work)


def test_a_count_kept_by_eight_processes_with_bases_misses_none(
    home: Path, service: CheckpointService
) -> None:
    summary = {"state": {"count": 0}}
    made = service.create_checkpoint("task", "agent", context_summary=summary)
    checkpoint_id, each = made.metadata.checkpoint_id, full(25, 250)
    refused = apart(counting_processes, home, checkpoint_id, each)
    assert sum(refused) > 0, "they never met: this run proves nothing"
    assert service.get_checkpoint(checkpoint_id).context_summary.state["count"] == 8 * each
    assert audit(home).problems == []


def updates_without_a_base(home: Path, checkpoint_id: str, each: int) -> list[list[str]]:
    def work(number: int) -> list[str]:
        service = CheckpointService(home=home)
        names = [f"{number}-{turn}" for turn in range(each)]
        for name in names:
            change = {"context_summary": {"state": {name: number}}}
            service.update_checkpoint(checkpoint_id, change)
        service.close()
        return names

    return at_once(8, work)


def test_updates_without_a_base_all_succeed_and_none_is_lost(
    home: Path, service: CheckpointService
) -> None:
    checkpoint_id = service.create_checkpoint("task", "agent").metadata.checkpoint_id
    names = [*chain(*apart(updates_without_a_base, home, checkpoint_id, full(25, 100)))]
    current = service.get_checkpoint(checkpoint_id)
    assert sorted(current.context_summary.state) == sorted(names)
    found = audit(home)
    assert found.problems == []
    assert len(found.revisions) == 1 + len(names)
