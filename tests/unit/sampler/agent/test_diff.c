/*
 * Growth of cumulative heap profiles: never negative, nothing twice, restarts recognised. The cases
 * are the known faults of the field (negative, delta, cumulative).
 */
#include "tests/support/ef_test.h"

#include <stdlib.h>
#include <string.h>

#include "sampler/agent/diff.h"

struct row {
    const char *name;
    int64_t objects, bytes;
};

static struct ef_profile *
profile_of(const struct row *rows, size_t count)
{
    struct ef_profile *profile = NULL;

    assert_int_equal(ef_profile_open(&ef_profile_limits_default, &profile, NULL), EF_OK);
    assert_int_equal(ef_profile_add_type(profile, "objects", "count", NULL), EF_OK);
    assert_int_equal(ef_profile_add_type(profile, "space", "bytes", NULL), EF_OK);
    for (size_t i = 0; i < count; i++) {
        struct ef_profile_function function = {.start_line = 1};
        struct ef_profile_frame frame = {.line = 3, .column = (uint32_t)i};
        uint32_t node;
        assert_int_equal(ef_profile_add_string(profile, rows[i].name, strlen(rows[i].name),
                                               &function.name, NULL),
                         EF_OK);
        assert_int_equal(ef_profile_add_function(profile, &function, &frame.function, NULL), EF_OK);
        assert_int_equal(ef_profile_add_frame(profile, &frame, &frame.mapping, NULL), EF_OK);
        assert_int_equal(ef_profile_add_node(profile, 0, frame.mapping, &node, NULL), EF_OK);
        assert_int_equal(ef_profile_add_value(profile, node, 0, rows[i].objects, NULL), EF_OK);
        assert_int_equal(ef_profile_add_value(profile, node, 1, rows[i].bytes, NULL), EF_OK);
    }
    return profile;
}

/* Applies a profile; *ret_bytes and *ret_objects are the sums handed out for `name`. */
static bool
apply(struct ef_heap_diff *diff, const struct row *rows, size_t count, const char *name,
      int64_t *ret_bytes, uint64_t *ret_objects)
{
    struct ef_profile *profile = profile_of(rows, count);
    struct ef_fragment_sample *samples = NULL;
    uint64_t *hashes = NULL;
    size_t sample_count = 0;
    bool restarted = false;
    char buf[64];

    *ret_bytes = 0;
    *ret_objects = 0;
    assert_int_equal(ef_profile_hashes(profile, &hashes, NULL), EF_OK);
    assert_int_equal(
        ef_heap_samples(diff, profile, hashes, &samples, &sample_count, &restarted, NULL), EF_OK);
    for (size_t i = 0; i < sample_count; i++) {
        const char *at =
            ef_profile_frame_name(profile, profile->nodes[samples[i].node].frame, buf, sizeof(buf));
        assert_true(samples[i].value >= 0);
        assert_true(samples[i].value > 0 || samples[i].count > 0);
        if (strcmp(at, name) == 0) {
            *ret_bytes += samples[i].value;
            *ret_objects += samples[i].count;
        }
    }
    free(samples);
    free(hashes);
    ef_profile_free(profile);
    return restarted;
}

static int
setup(void **state)
{
    struct ef_heap_diff *diff = malloc(sizeof(*diff));

    ef_heap_diff_init(diff, 1000);
    *state = diff;
    return 0;
}

static int
teardown(void **state)
{
    ef_heap_diff_fini(*state);
    free(*state);
    return 0;
}

static void
first_profile_counts_whole_and_later_ones_by_growth(void **state)
{
    const struct row first[] = {{"a", 10, 1000}, {"b", 1, 50}};
    const struct row second[] = {{"a", 14, 1400}, {"b", 1, 50}, {"c", 2, 20}};
    int64_t bytes;
    uint64_t objects;

    assert_false(apply(*state, first, 2, "a", &bytes, &objects));
    assert_int_equal(bytes, 1000);
    assert_int_equal(objects, 10);
    assert_false(apply(*state, second, 3, "a", &bytes, &objects));
    assert_int_equal(bytes, 400);
    assert_int_equal(objects, 4);
    assert_false(apply(*state, second, 3, "c", &bytes, &objects));
    assert_int_equal(bytes, 0);
}

/* Field fault: a process restart resets the counter between two fetches; was negative. */
static void
restart_of_the_counter_gives_the_new_values(void **state)
{
    const struct row before[] = {{"a", 100, 10000}, {"b", 1, 50}};
    const struct row after[] = {{"a", 3, 300}, {"b", 2, 100}};
    int64_t bytes;
    uint64_t objects;

    apply(*state, before, 2, "a", &bytes, &objects);
    assert_true(apply(*state, after, 2, "a", &bytes, &objects));
    assert_int_equal(bytes, 300);
    assert_int_equal(objects, 3);
}

/* Field fault: +100, -150, +200 on one stack must net 150, whatever the order of fetches. */
static void
ups_and_downs_of_a_stack_net_what_the_counter_says(void **state)
{
    const int64_t cumulative[] = {200, 50, 250, 240, 251};
    int64_t sum = 0;

    for (size_t i = 0; i < 5; i++) {
        const struct row rows[] = {{"a", 1, cumulative[i]}, {"grows", 1, 1000 * (int64_t)(i + 1)}};
        int64_t bytes;
        uint64_t objects;
        assert_false(apply(*state, rows, 2, "a", &bytes, &objects));
        sum += bytes;
    }
    assert_int_equal(sum, 251);
}

/* Inlining moves bytes to the caller: the callee stands still, nothing is negative. */
static void
stack_that_stops_or_vanishes_adds_nothing(void **state)
{
    const struct row before[] = {{"callee", 4, 400}, {"caller", 1, 100}};
    const struct row after[] = {{"caller", 9, 900}};
    int64_t bytes;
    uint64_t objects;

    apply(*state, before, 2, "callee", &bytes, &objects);
    assert_false(apply(*state, after, 1, "callee", &bytes, &objects));
    assert_int_equal(bytes, 0);
    assert_false(apply(*state, before, 2, "callee", &bytes, &objects) && bytes < 0);
}

static void
reset_makes_the_next_profile_count_whole(void **state)
{
    const struct row rows[] = {{"a", 10, 1000}};
    int64_t bytes;
    uint64_t objects;

    apply(*state, rows, 1, "a", &bytes, &objects);
    ef_heap_diff_reset(*state);
    assert_false(apply(*state, rows, 1, "a", &bytes, &objects));
    assert_int_equal(bytes, 1000);
}

/* Field fault: a client that sends deltas already is subtracted once more. Windows have no diff. */
static void
windows_and_snapshots_are_not_subtracted(void **state)
{
    const struct row rows[] = {{"a", 10, 1000}};
    int64_t bytes;
    uint64_t objects;

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_false(apply(NULL, rows, 1, "a", &bytes, &objects));
        assert_int_equal(bytes, 1000);
    }
}

/* Goal: nodes that the collector cannot tell apart (other columns only) are one sample. */
static void
stacks_of_equal_hash_are_one_sample(void **state)
{
    const struct row rows[] = {{"a", 1, 100}, {"a", 2, 200}, {"b", 0, 0}};
    struct ef_profile *profile = profile_of(rows, 3);
    struct ef_fragment_sample *samples = NULL;
    uint64_t *hashes = NULL;
    size_t count = 0;
    bool restarted;

    assert_int_equal(ef_profile_hashes(profile, &hashes, NULL), EF_OK);
    assert_int_equal(ef_heap_samples(*state, profile, hashes, &samples, &count, &restarted, NULL),
                     EF_OK);
    assert_int_equal(count, 1);
    assert_int_equal(samples[0].value, 300);
    assert_int_equal(samples[0].count, 3);
    free(samples);
    free(hashes);
    ef_profile_free(profile);
}

static void
profile_without_bytes_and_too_many_stacks_are_refused(void **state)
{
    const struct row rows[] = {{"a", 1, 100}, {"b", 2, 200}};
    struct ef_profile *profile = profile_of(rows, 2), *other = NULL;
    struct ef_fragment_sample *samples = NULL;
    uint64_t *hashes = NULL, none[1] = {0};
    struct ef_heap_diff small;
    struct ef_err err = {0};
    size_t count = 7;
    bool restarted;

    ef_heap_diff_init(&small, 1);
    assert_int_equal(ef_profile_hashes(profile, &hashes, NULL), EF_OK);
    assert_int_equal(ef_heap_samples(&small, profile, hashes, &samples, &count, &restarted, &err),
                     EF_ELIMIT);
    assert_null(samples);
    assert_int_equal(count, 7);
    assert_int_equal(ef_profile_open(&ef_profile_limits_default, &other, NULL), EF_OK);
    assert_int_equal(ef_heap_samples(*state, other, none, &samples, &count, &restarted, &err),
                     EF_EINVAL);
    assert_non_null(strstr(err.msg, "bytes"));
    ef_heap_diff_fini(&small);
    free(hashes);
    ef_profile_free(profile);
    ef_profile_free(other);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(first_profile_counts_whole_and_later_ones_by_growth, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(restart_of_the_counter_gives_the_new_values, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(ups_and_downs_of_a_stack_net_what_the_counter_says, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(stack_that_stops_or_vanishes_adds_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(reset_makes_the_next_profile_count_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(windows_and_snapshots_are_not_subtracted, setup, teardown),
        cmocka_unit_test_setup_teardown(stacks_of_equal_hash_are_one_sample, setup, teardown),
        cmocka_unit_test_setup_teardown(profile_without_bytes_and_too_many_stacks_are_refused,
                                        setup, teardown),
    };

    return cmocka_run_group_tests_name("sampler.agent.diff", tests, NULL, NULL);
}
