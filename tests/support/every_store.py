"""What every store has to do: tests that .ci/run has pass once more where bytes are in a bucket of Ceph."""

# They speak to the server as clients do.
MODULES = frozenset({"test_concatenation", "test_http_chunks", "test_http_delta", "test_http_whole", "test_own_trash"})
# But these look at files, cut or lock them, or have the disk fail; and the last one says that who came first fills, which is
# whoever came last where nothing is locked.
OF_THE_DISK = frozenset(
    {
        "test_full_disk_is_told_where_a_whole_is_filled",
        "test_while_the_merge_takes_longer_the_answer_is_to_come_back",
        "test_bytes_lost_on_disk_make_chunks_missing_again",
        "test_a_disk_that_is_full_in_a_write_is_told_and_nothing_counts",
        "test_a_merge_that_failed_on_the_way_is_carried_out_when_asked_again",
        "test_a_merge_of_wrong_bytes_is_refused_once_and_then_gone",
        "test_cancelling_while_merging_wins",
        "test_a_full_disk_is_told_and_leaves_no_bytes",
        "test_a_signature_that_another_made_meanwhile_is_not_made_again",
        "test_what_is_beside_a_blob_goes_with_it_or_is_met_by_the_cleanup_and_no_other",
        "test_a_kept_signature_that_is_damaged_is_made_anew",
        "test_of_what_rotted_there_is_no_signature",
        "test_a_base_that_is_not_whole_is_not_used",
        "test_a_base_that_the_disk_can_t_read_is_not_used",
        "test_of_a_base_that_is_cut_meanwhile_nothing_counts",
        "test_a_base_that_rotted_is_not_copied_from_and_looked_at",
        "test_a_base_that_many_find_rotted_at_once_is_looked_at_once",
        "test_a_base_that_the_trash_has_is_healed_and_copied_from",
        "test_bytes_of_a_part_that_went_bad_make_no_file",
        "test_one_process_fills_a_whole",
    }
)
