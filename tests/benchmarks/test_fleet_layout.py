"""The fleet's hosts fit together: whoever sends to a rank is whom that rank receives from."""

from collections import Counter, defaultdict

from benchmarks.fleet_layout import GPUS_PER_HOST, Group, plan_host

FLEET = [plan_host(number) for number in range(1_280)]


def _members() -> dict[int, dict[int, tuple[int, Group]]]:
    members: dict[int, dict[int, tuple[int, Group]]] = defaultdict(dict)
    for plan in FLEET:
        for group in plan.groups:
            assert group.rank not in members[group.comm], "two ranks of one number in a communicator"
            members[group.comm][group.rank] = (plan.number, group)
    return members


def test_a_full_fleet_has_whole_dense_jobs_of_three_layouts_and_one_mixture_of_experts() -> None:
    sizes = Counter(plan.job for plan in FLEET)
    kinds = {plan.job: tuple(sorted({group.kind for group in plan.groups})) for plan in FLEET}

    assert sizes.pop("moe-0") == 128
    assert set(sizes.values()) == {32}
    assert Counter(kinds.values()) == {("dp", "pp", "tp"): 24, ("dp", "tp"): 12, ("dp", "ep"): 1}


def test_every_communicator_is_complete() -> None:
    for ranks in _members().values():
        nranks = {group.nranks for _, group in ranks.values()}
        assert nranks == {len(ranks)}
        assert sorted(ranks) == list(range(len(ranks)))


def test_each_send_to_another_host_is_a_receive_there() -> None:
    pairs = 0
    for ranks in _members().values():
        for rank, (host, group) in ranks.items():
            for peer in group.next_peers:
                other_host, other = ranks[peer]
                assert other_host != host
                assert rank in other.previous_peers
                pairs += 1
            assert all(rank in ranks[peer][1].next_peers for peer in group.previous_peers)
    assert pairs > 10_000


def test_an_expert_rank_exchanges_with_all_56_ranks_of_the_seven_other_hosts() -> None:
    experts = [group for group in plan_host(32).groups if group.kind == "ep"]
    assert [group.rank for group in experts] == list(range(GPUS_PER_HOST))
    assert all(group.next_peers == tuple(range(8, 64)) for group in experts)


def test_64_hosts_have_experts_among_them() -> None:
    assert Counter(plan.job for plan in FLEET[:64])["moe-0"] == 8
