"""NCCL's XML tells the inside of a host: its GPUs, its NICs, and which of them are near each other."""

import pytest

from tests.importers.topology.build import complaints, join, read, said, source, stored, stored_folder

HOST = stored("nccl/n1.xml")


def pci(inner: str, busid: str = "0000:01:00.0", kind: str = "0x060400") -> str:
    return f'<pci busid="{busid}" class="{kind}">{inner}</pci>'


def gpu(number: int) -> str:
    return pci(f'<gpu dev="{number}"/>', f"0000:1{number}:00.0", "0x030200")


def nic(name: str, speed: int = 400_000, port: int = 1) -> str:
    return pci(f'<nic><net name="{name}" speed="{speed}" port="{port}"/></nic>', kind="0x020700")


def host(*cpus: str) -> str:
    return f'<system version="1">{"".join(f"<cpu>{inner}</cpu>" for inner in cpus)}</system>'


def nics_by_gpu(text: str) -> dict[int, tuple[str, ...]]:
    return {gpu.index: gpu.nics for gpu in read("nccl-xml", text).topology.hosts[0].gpus}


def test_host_has_its_gpus_and_nics_and_the_name_of_the_file() -> None:
    (found,) = read("nccl-xml", HOST, node="n7").topology.nodes
    assert (found.id, found.kind) == ("n7", "host")
    assert [gpu.id for gpu in found.gpus] == ["gpu0", "gpu1"]
    assert [nic.id for nic in found.nics] == ["mlx5_0"]


def test_folder_of_files_gives_hosts_without_a_fabric() -> None:
    imported = join(("nccl-xml", stored_folder("nccl")))
    assert [node.id for node in imported.topology.nodes] == ["n1", "n2", "n3", "n4"]
    assert imported.topology.links == ()
    assert said(imported, "no cable is known for 4 NICs: n1/mlx5_0, n2/mlx5_0, n3/mlx5_0 and 1 more")


def test_gpu_gets_the_nic_behind_its_own_switch() -> None:
    text = host(pci(gpu(0) + nic("a")) + pci(gpu(1) + nic("b")), pci(gpu(2) + nic("c")))
    assert nics_by_gpu(text) == {0: ("a",), 1: ("b",), 2: ("c",)}


def test_nearer_of_two_nics_on_nested_switches_is_taken() -> None:
    assert nics_by_gpu(host(pci(nic("far") + pci(nic("near") + gpu(0))))) == {0: ("near",)}


def test_equally_near_nics_are_all_taken() -> None:
    assert nics_by_gpu(host(pci(gpu(0) + nic("a") + nic("b")))) == {0: ("a", "b")}


def test_gpu_without_a_nic_on_its_socket_gets_those_of_the_other() -> None:
    assert nics_by_gpu(host(gpu(0), nic("a") + nic("b"))) == {0: ("a", "b")}


def test_host_without_nics_has_gpus_without_nics() -> None:
    assert nics_by_gpu(host(gpu(0))) == {0: ()}


def test_functions_without_names_are_called_by_their_address_and_counted_in_order() -> None:
    later = pci(pci("", "0000:20:1d.0", "0x030200") + pci("", "0000:20:1b.0", "0x020000"))
    earlier = pci(pci("", "0000:10:1c.0", "0x030200") + pci("", "0000:10:1b.0", "0x020000"))
    imported = read("nccl-xml", host(later + earlier), node="h")
    (found,) = imported.topology.hosts
    assert [(gpu.index, gpu.nics) for gpu in found.gpus] == [(0, ("0000:10:1b.0",)), (1, ("0000:20:1b.0",))]
    assert said(imported, "tells no name for 2 NICs: called by their PCI address")
    assert said(imported, "counted in the order of their PCI addresses")


def test_second_port_of_a_card_has_its_number_in_the_name() -> None:
    (found,) = read("nccl-xml", host(nic("mlx4_0", port=1) + nic("mlx4_0", port=2))).topology.hosts
    assert [one.id for one in found.nics] == ["mlx4_0", "mlx4_0:2"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<graphs/>", "is no topology of NCCL: it begins with <graphs> and not with <system>"),
        (host(nic("a") + nic("a")), "has NIC a more than once"),
        (host(gpu(0) + gpu(0)), "has two GPUs with one number"),
        ("", "is no XML: no element found"),
        ("<system>", "is no XML: no element found"),
        ("<a>" * 300 + "</a>" * 300, "is nested too deeply"),
        ('<!DOCTYPE x [<!ENTITY a "aaaa">]><system>&a;</system>', "declares a document type"),
        ('<?xml version="1.0" encoding="martian"?><system/>', "is no XML: unknown encoding"),
    ],
)
def test_file_that_is_something_else_is_refused(text: str, reason: str) -> None:
    found = complaints(("nccl-xml", [source(text, "h.xml")]))
    assert any(complaint.startswith(f"h.xml: {reason}") for complaint in found), found


def test_bomb_of_entities_is_refused_before_it_grows() -> None:
    levels = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    text = f'<!DOCTYPE x [<!ENTITY l0 "boom">{levels}]><system><cpu name="&l11;"/></system>'
    assert complaints(("nccl-xml", [source(text, "h.xml")])) == [
        "h.xml: declares a document type, which could make it grow without end"
    ]


def test_rate_that_is_no_number_is_not_told() -> None:
    text = host(pci('<nic><net name="a" speed="fast"/></nic>', kind="0x020700"))
    assert [one.id for one in read("nccl-xml", text).topology.hosts[0].nics] == ["a"]
