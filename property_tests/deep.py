"""Tests that every run need not repeat: they take many seconds each, and something quicker says most of what they say.

`make nightly` and `--all-releases` run all of them. Of those with parameters every run takes one in so many.
"""

from __future__ import annotations

DEEP: dict[str, int] = {
    "test_simulator.py::test_a_request_that_is_dropped_for_want_of_memory_leaves_nothing_behind": 0,
    "test_marks.py::test_random_schedules_reach_every_interleaving": 0,
    "test_features.py::test_every_feature_is_on_in_some_schedules_and_off_in_most": 0,
    "test_lifecycle.py::test_schedules_use_every_transition_but_a_seldom_one": 0,
    "test_pin.py::test_a_finding_and_its_smallest_schedule_are_the_same_under_every_hash_seed": 0,
    "test_pin.py::test_a_target_that_depends_on_the_hash_seed_ends_with_exit_code_3": 0,
    "test_workers.py::test_a_function_that_hangs_or_dies_is_a_finding_and_the_others_are_judged": 0,
    "test_workers.py::test_a_replay_file_whose_tape_means_another_case_no_longer_applies": 0,
    "test_workers.py::test_a_replay_file_is_pinned_replayed_and_shrunk": 0,
    "test_bisect_targets.py::test_host_functions_are_judged_at_git_revisions_too": 0,
    "test_bisect_targets.py::test_a_fix_is_found_with_the_newer_end_good_across_a_rename": 0,
    "test_check.py::test_a_replay_is_the_same_in_another_process_with_another_hash_seed": 0,
    "test_check.py::test_a_replay_says_when_it_is_not_reproduced_and_when_the_code_has_changed": 0,
    "test_check.py::test_the_same_seed_gives_the_same_verdict_and_a_commit_hash_is_a_seed": 0,
    "test_on_ray.py::test_a_campaign_ends_complete_when_a_node_is_killed_and_each_batch_is_counted_once": 0,
    "test_on_ray.py::test_when_the_cluster_is_lost_the_campaign_goes_on_here": 0,
    "test_on_ray.py::test_an_interrupt_gives_back_what_the_cluster_has_and_a_resume_runs_it": 0,
    "test_on_ray.py::test_a_target_that_the_nodes_do_not_have_is_asked_for_here_and_told_once": 0,
    "test_on_ray.py::test_a_tape_that_one_node_found_is_run_by_another_within_its_next_batch": 0,
    "test_on_ray.py::test_the_command_runs_a_campaign_on_the_cluster_and_says_so": 0,
    "test_on_ray.py::test_a_batch_for_a_gpu_waits_for_a_node_that_has_one_and_comes_to_it": 0,
    "test_campaign_docs.py::test_a_shard_goes_on_from_part_to_part_and_from_machine_to_machine": 0,
    "test_matrix.py::test_a_target_that_cannot_be_judged_costs_its_own_column": 0,
    "test_sweep.py::test_the_command_writes_what_it_counted": 0,
    "test_check_strategy.py::test_the_default_is_the_swarm_and_every_strategy_makes_schedules_of_its_own": 0,
    "test_kernels_in_the_simulator.py::test_the_command_finds_it_and_its_replay_uses_the_same_kernel": 0,
    "test_mutants.py::test_the_command_for_blind_mutants_ends_well_whatever_is_found": 0,
    "test_smallest.py::test_the_smallest_schedule_of_a_bug_is_this_small": 3,
    "test_release_accounting.py::test_a_release_that_takes_the_result_of_a_request_that_has_ended_is_found": 0,
    "test_release_accounting.py::test_a_schedule_run_twice_is_the_same_schedule": 0,
    "test_release_accounting.py::test_editing_the_defect_in_or_out_flips_the_finding": 6,
    "test_release_accounting.py::test_a_part_that_is_gone_is_not_run_and_nothing_is_simulated_without_it": 4,
    "test_release_accounting.py::test_a_host_function_that_raises_is_a_finding_with_its_part_and_line": 4,
    "test_kernels_are_lossless.py::test_a_kernel_emits_the_targets_law": 2,
    "test_campaign.py::test_an_interrupt_keeps_what_was_done_and_says_how_to_go_on": 0,
    "test_campaign.py::test_in_ci_the_commit_is_the_seed_and_a_canary_that_is_not_found_is_red": 0,
    "test_campaign_runs.py::test_a_run_that_ends_its_process_is_a_finding_and_costs_one_run": 4,
    "test_campaign_runs.py::test_a_child_that_is_killed_is_started_again": 0,
    "test_campaign_runs.py::test_a_run_is_made_again_from_its_numbers_in_another_process": 3,
    "test_campaign_runs.py::test_a_process_that_somebody_kills_is_no_finding_and_its_batch_is_whole": 0,
    "test_campaign_runs.py::test_a_batch_is_the_same_here_in_a_child_and_as_json": 0,
    "test_campaign_runs.py::test_a_target_that_differs_from_run_to_run_says_so": 0,
    "test_campaign_runs.py::test_what_a_target_prints_does_not_pile_up": 0,
    "test_bad_providers.py::test_what_a_provider_does_wrong_is_told_in_one_sentence": 4,
    "test_bulk_harness.py::test_a_launch_that_ends_its_process_costs_one_case": 2,
    "test_bulk_harness.py::test_a_launch_that_hangs_costs_one_case_and_the_run_goes_on": 0,
    "test_contracts.py::test_every_case_fits_its_contract_and_passes_the_references_checks": 2,
    "test_reference_agrees_with_loops.py::test_the_reference_equals_its_loops_in_double_precision_too": 2,
    "test_bulk_generators.py::test_the_reference_accepts_bulk_cases_and_equals_its_loops": 2,
    "test_fixtures.py::test_a_schedule_is_as_small_on_every_release_that_shows_its_bug_as_is_promised_of_the_model": 8,
    "test_marks.py::test_random_schedules_reach_every_other_mark_and_no_mark_is_left_out_of_the_tables": 0,
    "test_strategies.py::test_a_seed_gives_the_same_schedules_which_replay_and_break_no_rule": 3,
    "test_pin.py::test_a_pinned_finding_fails_while_it_is_there_and_with_still_it_passes": 3,
    "test_kernels_are_lossless.py::test_coins_next_to_a_threshold_fall_on_the_references_side": 3,
    "test_matrix.py::test_bad_input_is_one_clear_sentence_with_exit_code_2": 3,
    "test_smallest.py::test_a_schedule_ends_where_its_rule_breaks_and_a_pair_names_events_of_it": 0,
    "test_features.py::test_visible_outputs_of_the_swarm_are_read_by_their_grammars": 0,
    "test_mutants.py::test_the_default_swarm_finds": 5,
    "test_check.py::test_a_finding_of_a_release_is_found_and_replayed_through_the_command_line": 0,
    "test_known.py::test_the_command_says_it_in_one_screen_and_as_json": 0,
    "test_extension.py::test_what_an_extension_does_wrong_is_a_finding_against_it_with_the_seed": 3,
    "test_campaign.py::test_a_campaign_says_what_is_new_and_how_to_see_it_again": 2,
    "test_judging.py::test_the_own_kernels_have_no_finding": 3,
    "test_release_accounting.py::test_a_deleted_body_is_not_run_and_does_not_pass": 3,
    "test_warm_child.py::test_it_answers_as_a_fresh_child_does": 0,
}
"""File and function, and of how many sets of parameters every run takes the first; 0: none."""


def is_left_out(nodeid: str, seen: dict[str, int]) -> bool:
    """Whether a run that is not deep leaves this test out; `seen` counts the tests of each function, in their order."""
    function = nodeid.split("[")[0].rsplit("/", 1)[-1]
    every = DEEP.get(function)
    if every is None:
        return False
    number = seen[function] = seen.get(function, -1) + 1
    return every == 0 or number % every > 0
