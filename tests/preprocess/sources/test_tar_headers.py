"""The walk gives what `tarfile` gives, for every way of writing a tar; damage is one clear line, and never an end."""

import io
import tarfile
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile
from hypothesis import given
from hypothesis import strategies as st

from feedline.pipeline.base.errors import SourceError, UsageError
from feedline.pipeline.format import remote
from feedline.preprocess.sources.tar_headers import Member, reader, walk

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=300
).filter(lambda name: not name.endswith("/"))  # fmt: skip


def packed(members: list[tuple[str, bytes]], kind: int = tarfile.GNU_FORMAT, **changes: object) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for field, value in changes.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def walked(data: bytes, start: int = 0, end: int | None = None) -> list[Member]:
    return list(
        walk(lambda offset, length: data[offset : offset + length], start, len(data) if end is None else end, "t.tar")
    )


def contents(data: bytes, members: list[Member]) -> list[tuple[str, bytes]]:
    return [(member.name, data[member.offset : member.offset + member.length]) for member in members]


@given(st.lists(st.tuples(NAMES, st.binary(max_size=2000)), max_size=8), st.sampled_from(FORMATS[1:]))
def test_same_as_tarfile(members: list[tuple[str, bytes]], kind: int) -> None:
    data = packed(members, kind)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = [(m.name, (tar.extractfile(m) or io.BytesIO()).read()) for m in tar.getmembers()]
    found = contents(data, walked(data))
    assert [content for _, content in found] == [content for _, content in expected]
    # tarfile strips a trailing slash of a PAX path; both keep everything else.
    assert [name.rstrip("/") for name, _ in found] == [name for name, _ in expected]


@pytest.mark.parametrize("kind", FORMATS)
def test_plain_long_and_prefixed_names(kind: int) -> None:
    names = ["n01440764_10026.JPEG", "a/" * 60 + "b.jpg", "x" * 99, "d" * 90 + "/" + "f" * 90]
    data = packed([(name, name.encode()) for name in names], kind)
    assert contents(data, walked(data)) == [(name, name.encode()) for name in names]


def test_names_that_are_no_utf8_survive() -> None:
    data = packed([("x\udcff.jpg", b"1")])
    assert [member.name for member in walked(data)] == ["x\udcff.jpg"]


def test_offsets_in_a_tar_of_tars_are_absolute() -> None:
    inner = packed([("a.jpg", b"first"), ("b.jpg", b"second" * 100)])
    outer = packed([("n00000001.tar", b"x" * 700), ("n00000002.tar", inner)])
    place = walked(outer)[1]
    found = walked(outer, place.offset, place.offset + place.length)
    assert contents(outer, found) == [("a.jpg", b"first"), ("b.jpg", b"second" * 100)]


def test_size_in_base_256_and_in_a_pax_header() -> None:
    header = bytearray(packed([("a.jpg", b"123")])[:512])
    header[124:136] = b"\x80" + (3).to_bytes(11, "big")
    assert walked(rechecked(header) + b"123".ljust(512, b"\0") + bytes(1024)) == [Member("a.jpg", 512, 3)]
    data = packed([("a.jpg", b"123")], tarfile.PAX_FORMAT, pax_headers={"size": "3", "comment": "é"})
    assert contents(data, walked(data)) == [("a.jpg", b"123")]


def test_signed_checksum_of_old_tars() -> None:
    header = bytearray(packed([("é.jpg", b"123")])[:512])
    signed = sum(byte - 256 if byte > 127 else byte for byte in header[:148] + b" " * 8 + header[156:])
    header[148:156] = b"%06o\0 " % signed
    assert len(walked(bytes(header) + b"123".ljust(512, b"\0") + bytes(1024))) == 1


def test_folders_and_global_headers_are_passed_over() -> None:
    folder = packed([("some/", b"")], type=tarfile.DIRTYPE)[:512]
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "all"}) as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))
    assert [member.name for member in walked(folder + file.getvalue())] == ["a.jpg"]


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (tarfile.SYMTYPE, "symbolic link"),
        (tarfile.LNKTYPE, "hard link"),
        (tarfile.CHRTYPE, "character device"),
        (tarfile.BLKTYPE, "block device"),
        (tarfile.FIFOTYPE, "pipe"),
    ],
)
def test_what_has_no_bytes_is_a_member_without_any(kind: bytes, what: str) -> None:
    link = packed([("evil.jpg", b"")], tarfile.PAX_FORMAT, type=kind, linkname="é" * 200)
    data = link[:-1024].rstrip(b"\0") + bytes(-len(link[:-1024].rstrip(b"\0")) % 512) + packed([("a.jpg", b"1")])
    assert [(member.name, member.length, member.trouble) for member in walked(data)] == [
        ("evil.jpg", 0, what), ("a.jpg", 1, ""),
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "what"), [(tarfile.GNUTYPE_SPARSE, "sparse file"), (b"Z", "unknown type")])
def test_what_cannot_be_read_past_is_refused(kind: bytes, what: str) -> None:
    with pytest.raises(SourceError, match=rf"t\.tar: 'evil\.jpg' is a .*{what}"):
        walked(packed([("evil.jpg", b"")], type=kind))


def test_pax_sparse_is_refused() -> None:
    data = packed([("holes.jpg", b"1")], tarfile.PAX_FORMAT, pax_headers={"GNU.sparse.major": "1"})
    with pytest.raises(SourceError, match="sparse"):
        walked(data)


def test_cut_short_anywhere_is_noticed() -> None:
    data = packed([("a.jpg", b"1" * 700), ("b.jpg", b"2" * 700)], tarfile.PAX_FORMAT, pax_headers={"comment": "long"})
    whole = walked(data)
    marked = whole[1].offset + 1024
    for end in range(0, marked + 1, 100):
        with pytest.raises(SourceError, match="cut short"):
            walked(data[:end])
    assert walked(data[: marked + 512]) == whole  # one zero block is a mark, as for tar itself


@pytest.mark.parametrize("position", [0, 50, 124, 130, 150, 156, 300])
def test_a_damaged_header_is_noticed(position: int) -> None:
    data = bytearray(packed([("a.jpg", b"1" * 10), ("b.jpg", b"2")]))
    data[position] ^= 1
    with pytest.raises(SourceError):
        walked(bytes(data))


def test_a_size_that_lies_is_noticed() -> None:
    header = bytearray(packed([("a.jpg", b"x" * 512), ("b.jpg", b"y" * 512)]))
    for lie in (0, 600, 1 << 20):
        header[124:136] = b"%011o\0" % lie
        with pytest.raises(SourceError, match=r"no valid tar header at byte|cut short"):
            walked(rechecked(header[:512]) + b"x" * 512 + bytes(header[1024:]))


def test_a_huge_pax_header_does_not_fill_memory() -> None:
    header = bytearray(packed([("a", b"")], type=tarfile.XHDTYPE)[:512])
    header[124:136] = b"%011o\0" % (1 << 31)
    with pytest.raises(SourceError, match="damaged"):
        walked(rechecked(header) + bytes(2048))


@given(st.binary(max_size=3000), st.integers(0, 3))
def test_noise_never_hangs_nor_crashes(noise: bytes, kind: int) -> None:
    data = packed([("a.jpg", b"1")], tarfile.PAX_FORMAT, pax_headers={"k": "v"})
    at = 512 * kind
    try:
        walked(data[:at] + noise + data[at:])
    except SourceError:
        pass


def test_readers_agree(tmp_path: Path) -> None:
    path = tmp_path / "t.tar"
    path.write_bytes(packed([(f"{number}.jpg", b"x" * number * 77) for number in range(40)]))
    found: list[list[Member]] = []
    for address in (str(path), path.as_uri()):
        for window in (512, 4096):
            with reader(address, {}, window) as (read, size):
                found.append(list(walk(read, 0, size, address)))
    assert found[0] == found[1] == found[2] == found[3]
    assert len(found[0]) == 40


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone.tar")
    with pytest.raises(UsageError, match=r"gone\.tar cannot be read: No such file"), reader(gone, {}):
        pass
    address = (tmp_path / "gone.tar").as_uri()
    with pytest.raises(UsageError, match="cannot be read"), reader(address, {}):
        pass


def rechecked(header: bytes | bytearray) -> bytes:
    """The header with its checksum put right."""
    total = sum(header[:148]) + 8 * 32 + sum(header[156:512])
    return bytes(header[:148]) + b"%06o\0 " % total + bytes(header[156:])


def test_folders_of_old_tars_are_no_files_and_an_extension_needs_its_member() -> None:
    data = bytearray(packed([("old/", b""), ("old/a", b"1")], tarfile.USTAR_FORMAT))
    data[156:157] = b"\0"
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    assert contents(bytes(data), walked(bytes(data))) == [("old/a", b"1")]
    long = packed([("x" * 150, b"")], tarfile.PAX_FORMAT)
    with pytest.raises(SourceError, match="no valid tar header"):
        walked(long[:1024] + bytes(1024))


def test_a_hole_is_not_the_end() -> None:
    """A zeroed stretch over a header looks like the end-of-archive mark; so does the end of a first tar of two."""
    data = packed([("a", b"1" * 600), ("b", b"2" * 600), ("c", b"3")])
    second = walked(data)[1].offset - 512
    holed = data[:second] + bytes(4096) + data[second + 4096 :]
    for damaged in (data[:second] + bytes(512) + data[second + 512 :], data + data):
        with pytest.raises(
            SourceError, match=r"t\.tar ends at byte .* before its end: damaged .*, or several tars in one"
        ):
            walked(damaged)
    assert len(walked(holed)) == 1  # all that follows is zero: nothing tells it from padding
    with pytest.raises(SourceError, match="before its end"):
        walked(data + bytes(8 << 20))


def test_a_connection_that_breaks_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Exception):
        """As aiohttp's are: neither of the system nor a wrong value."""

    file, failures = fsspec.filesystem("memory"), [Broken("payload is not whole")] * 2
    file.pipe("/a.tar", packed([("x", b"12")]))
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.0)
    read_once = MemoryFile.read

    def read(self: MemoryFile, length: int = -1) -> bytes:
        if failures:
            raise failures.pop()
        return read_once(self, length)

    monkeypatch.setattr(MemoryFile, "read", read)
    with reader("memory:///a.tar", {}) as (read_at, size):
        assert read_at(0, 1) == b"x" and not failures and size > 512
        failures += [Broken("payload is not whole")] * 9
        with pytest.raises(UsageError, match=r"a\.tar cannot be read: payload is not whole"):
            read_at(0, 1)
