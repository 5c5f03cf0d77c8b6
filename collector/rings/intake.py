"""Which ring files are followed: each is opened, checked against the kernel, and refused with a sentence or taken.

Nobody else removes ring files: the plugin cannot, since its process may be killed. So those of dead processes are
removed here, after all that was in them has been sent for a while; also those that nobody ever held.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from collector.rings.checkpoint import FileKey, FileMemory, file_key
from collector.rings.finding import FoundFile, RingDirectories
from collector.rings.gpu import find_gpu, host_gpus
from collector.rings.ownership import Claim, Owner, find_owner, read_environment
from collector.rings.process import FILE_FAULTS, FollowedProcess
from lockstep.clock import NS_PER_S
from lockstep.errors import BadRing, RingNotReady
from lockstep.rings.folding import HostFolder
from lockstep.rings.opening import ForeignFile
from lockstep.rings.origin import Origin
from lockstep.rings.ringfile import RingFile, open_ring

MOST_PROCESSES = 512
READ_GRACE_NS = 60 * NS_PER_S  # from the end of a process that was followed to the end of its file
STRANGE_GRACE_NS = 600 * NS_PER_S  # for a file that nobody holds and that was not followed: somebody may look at it
_MOST_REFUSALS = 64  # told in one look; the others are told later, so that a flood cannot fill a batch

_Name = tuple[int, int, str]  # device, inode, and name: a file system may use a number again


class RingIntake:
    """Looks for ring files again and again."""

    def __init__(self, host: str, root: Path, directories: Sequence[Path]) -> None:
        self._host, self._root, self._proc = host, root, root / "proc"
        self._directories = RingDirectories(root, directories)
        self._settled: set[_Name] = set()  # refused or read to the end, and still there
        self._leaving: dict[_Name, tuple[FoundFile, int]] = {}  # files to be removed, and when
        self._remembered: dict[FileKey, FileMemory] = {}
        self.refusals: list[str] = []  # sentences of the last look

    def remember(self, files: Mapping[FileKey, FileMemory]) -> None:
        """Know again which files another collector followed, and how far."""
        self._remembered = dict(files)

    def look(self, now_ns: int, followed: Iterable[FollowedProcess], folder: HostFolder) -> list[FollowedProcess]:
        """Return the processes that are new, members of `folder`; `refusals` says which files are not followed."""
        known = {_name(process.file) for process in followed}
        in_use = {process.file.directory.inode for process in followed}
        in_use |= {file.directory.inode for file, _ in self._leaving.values()}
        directories = self._directories.look(now_ns, in_use)
        self.refusals = list(self._directories.complaints)
        files = {_name(file): file for directory in directories for file in directory.files()}
        self._settled &= files.keys()
        fresh = [file for name, file in files.items() if name not in known and name not in self._settled]
        room = max(MOST_PROCESSES - len(known), 0)
        taken = [
            process for file in fresh[: room + _MOST_REFUSALS] if (process := self._consider(file, now_ns, folder))
        ]
        self._remove_old(now_ns)
        return taken

    def settle(self, file: FoundFile, now_ns: int, is_over: bool) -> None:
        """Follow this file no longer; when its process has ended, remove it after a while."""
        self._settled.add(_name(file))
        if is_over:
            self._leaving[_name(file)] = file, now_ns + READ_GRACE_NS

    def close(self) -> None:
        self._directories.close()

    def _consider(self, file: FoundFile, now_ns: int, folder: HostFolder) -> FollowedProcess | None:
        ring: RingFile | None = None
        try:
            ring = open_ring(file.path, file.shown)
            return self._follow(file, ring, folder)
        except RingNotReady:
            self._leaving.setdefault(_name(file), (file, now_ns + STRANGE_GRACE_NS))
        except FILE_FAULTS as refusal:
            self._settled.add(_name(file))
            self._leaving.setdefault(_name(file), (file, now_ns + STRANGE_GRACE_NS))
            self.refusals.append(str(refusal) or type(refusal).__name__)
        if ring:
            ring.close()
        return None

    def _follow(self, file: FoundFile, ring: RingFile, folder: HostFolder) -> FollowedProcess:
        holder = ring.owner()
        memory = self._remembered.get(file_key(ring.inode, ring.identity.created_ns))
        if memory and memory.uid == ring.uid and holder in (None, memory.origin.pid):
            pid, job, attempt = memory.origin.pid or 0, memory.origin.job, memory.origin.attempt
            owner = Owner(pid, job, attempt, read_environment(self._proc, pid) or {})
            process = FollowedProcess(file, ring, owner, memory.origin, folder)
            try:
                process.resume(memory)
            except BaseException:
                process.folder.leave()
                raise
        else:
            owner = find_owner(self._proc, holder, Claim(ring.name, ring.uid, ring.identity.job))
            ring.clock()  # RingNotReady: nothing can be said of its times yet
            process = FollowedProcess(file, ring, owner, self._origin(file, ring, owner), folder)
        self._remembered.pop(file_key(ring.inode, ring.identity.created_ns), None)
        self._leaving.pop(_name(file), None)
        return process

    def _origin(self, file: FoundFile, ring: RingFile, owner: Owner) -> Origin:
        contained = file.directory.is_contained
        gpu = find_gpu(owner.environment, ring.identity.local_rank, host_gpus(self._root), contained)
        return Origin(host=self._host, job=owner.job, attempt=owner.attempt, pid=owner.pid, gpu=gpu)

    def _remove_old(self, now_ns: int) -> None:
        for name, (file, due_ns) in list(self._leaving.items()):
            if due_ns <= now_ns:
                del self._leaving[name]
                if not _is_held(file):
                    file.remove()


def _name(file: FoundFile) -> _Name:
    return (*file.inode, file.name)


def _is_held(file: FoundFile) -> bool:
    """Return whether somebody holds the file; what cannot be asked is left alone."""
    try:
        opened = ForeignFile(file.path, shown=file.shown)
    except BadRing:
        return True
    try:
        return opened.inode != file.inode or opened.lock_owner() is not None
    except BadRing:
        return True
    finally:
        opened.close()
