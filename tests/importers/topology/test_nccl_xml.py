"""NCCL's XML tells the inside of a host: its GPUs, its NICs, and which of them are near each other."""

from tests.importers.topology.build import complaints, join, read, said, source, stored_folder


def pci(inner: str, busid: str = "0000:01:00.0", kind: str = "0x060400") -> str:
    return f'<pci busid="{busid}" class="{kind}">{inner}</pci>'


def gpu(number: int) -> str:
    return pci(f'<gpu dev="{number}"/>', f"0000:1{number}:00.0", "0x030200")


def nic(name: str, speed: str = "400000", port: int = 1) -> str:
    return pci(f'<nic><net name="{name}" speed="{speed}" port="{port}"/></nic>', kind="0x020700")


def host(*cpus: str) -> str:
    return f'<system version="1">{"".join(f"<cpu>{inner}</cpu>" for inner in cpus)}</system>'


def test_folder_of_files_gives_hosts_with_gpus_and_nics_and_without_a_fabric() -> None:
    imported = join(("nccl-xml", stored_folder("nccl")))
    assert [(node.id, node.kind) for node in imported.topology.nodes] == [(f"n{n}", "host") for n in range(1, 5)]
    assert [gpu.id for gpu in imported.topology.nodes[0].gpus] == ["gpu0", "gpu1"]
    assert [nic.id for nic in imported.topology.nodes[0].nics] == ["mlx5_0"]
    assert imported.topology.links == ()
    assert said(imported, "no cable is known for 4 NICs: n1/mlx5_0, n2/mlx5_0, n3/mlx5_0 and 1 more")


def test_gpu_gets_the_nics_that_are_nearest() -> None:
    own_switch = host(pci(gpu(0) + nic("a")) + pci(gpu(1) + nic("b")), pci(gpu(2) + nic("c")))
    nearest: dict[str, list[tuple[str, ...]]] = {
        own_switch: [("a",), ("b",), ("c",)],
        host(pci(nic("far") + pci(nic("near") + gpu(0)))): [("near",)],
        host(pci(gpu(0) + nic("a") + nic("b"))): [("a", "b")],  # equally near
        host(gpu(0), nic("a") + nic("b")): [("a", "b")],  # none on its own socket
        host(gpu(0)): [()],
        host(gpu(0) + nic("m", port=1) + nic("m", port=2, speed="fast")): [("m", "m:2")],
    }
    for text, nics in nearest.items():
        (found,) = read("nccl-xml", text).topology.hosts
        assert [(gpu.index, gpu.nics) for gpu in found.gpus] == list(enumerate(nics))


def test_functions_without_names_are_called_by_their_address_and_counted_in_order() -> None:
    later = pci(pci("", "0000:20:1d.0", "0x030200") + pci("", "0000:20:1b.0", "0x020000"))
    earlier = pci(pci("", "0000:10:1c.0", "0x030200") + pci("", "0000:10:1b.0", "0x020000"))
    imported = read("nccl-xml", host(later + earlier), node="h")
    (found,) = imported.topology.hosts
    assert [(gpu.index, gpu.nics) for gpu in found.gpus] == [(0, ("0000:10:1b.0",)), (1, ("0000:20:1b.0",))]
    assert said(imported, "tells no name for 2 NICs: called by their PCI address")
    assert said(imported, "counted in the order of their PCI addresses")


LEVELS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
BOMB = f'<!DOCTYPE x [<!ENTITY l0 "boom">{LEVELS}]><system><cpu name="&l11;"/></system>'


def test_file_that_is_something_else_is_refused() -> None:
    refused = {
        "<graphs/>": "is no topology of NCCL: it begins with <graphs> and not with <system>",
        host(nic("a") + nic("a")): "has NIC a more than once",
        host(gpu(0) + gpu(0)): "has two GPUs with one number",
        "": "is no XML: no element found",
        "<system>": "is no XML: no element found",
        "<a>" * 300 + "</a>" * 300: "is nested too deeply",
        '<!DOCTYPE x [<!ENTITY a "aaaa">]><system>&a;</system>': "declares a document type",
        BOMB: "declares a document type, which could make it grow without end",
        '<?xml version="1.0" encoding="martian"?><system/>': "is no XML: unknown encoding",
    }
    for text, reason in refused.items():
        found = complaints(("nccl-xml", [source(text, "h.xml")]))
        assert any(complaint.startswith(f"h.xml: {reason}") for complaint in found), found
